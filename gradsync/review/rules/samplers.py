"""Samplers: the ranks need different samples, equally many, in a new order in each epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from gradsync.review.findings import Hit, any_part, at, data_parallel, rule
from gradsync.review.flow.conditions import is_modulo
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import LOCAL, SHARE, Step, Thing, Value
from gradsync.review.queries import (
    JOIN,
    all_ranks_meet,
    any_number_of_machines,
    classes_in,
    constant,
    has_mesh,
    is_false,
    mentions,
    sampler_of,
    training_loops,
)

_RANK = re.compile(r"(^|_)rank$")


@rule(
    "DDP004",
    "A sampler ignores its rank",
    topic="each rank has its own samples",
    remedy="Select the samples by this rank, such as `indices[rank::num_replicas]` after padding.",
    applies=any_part,
)
def ignores_its_rank(program: Program) -> Iterator[Hit]:
    """Find samplers that give every rank the same samples."""
    for thing in program.things("sampler") if program.starts else ():
        step = thing.step
        if step is None or thing.of_class is not None:
            continue
        rank, replicas = step.argument(2, "rank"), step.argument(1, "num_replicas")
        if isinstance(constant(rank), int) and constant(replicas) != 1:
            yield at(
                step,
                f"The sampler has rank {constant(rank)} on every rank, so all ranks read the same "
                "share, and the other shares are never read.",
                "Pass the rank of this process, or leave `rank` and `num_replicas` out.",
            )
    for cls in _samplers(program):
        method = _method(cls, "__iter__")
        if method is not None and _takes_rank(cls) and not _uses_rank(cls):
            yield Hit(
                method,
                program.source,
                f"`{cls.name}` takes a rank but never uses it: every rank gets the same samples.",
                function="__iter__",
            )


def _samplers(program: Program) -> Iterator[ast.ClassDef]:
    """Yield the sampler classes in a file, only for the first of its programs."""
    for cls in classes_in(program.source) if program.entry else ():
        if any(ast.unparse(base).split("[")[0].endswith("Sampler") for base in cls.bases):
            yield cls


def _method(cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    """Return a method, unless it only raises an error such as NotImplementedError."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return None if isinstance(node.body[-1], ast.Raise) else node
    return None


def _takes_rank(cls: ast.ClassDef) -> bool:
    init = _method(cls, "__init__")
    return init is not None and any(_RANK.search(arg.arg) for arg in init.args.args)


def _uses_rank(cls: ast.ClassDef) -> bool:
    """Return whether a method does more with the rank than store it or check it."""
    for node in cls.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for statement in node.body:
            stores = isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(
                statement.value, (ast.Name, ast.Attribute)
            )
            checks = isinstance(statement, (ast.Assert, ast.If)) and node.name == "__init__"
            delegates = isinstance(statement, ast.Expr) and "super()" in ast.unparse(statement)
            if (not stores and not checks and _loads_rank(statement)) or delegates:
                return delegates or node.name != "__repr__"
    return False


def _loads_rank(node: ast.AST) -> bool:
    names = (
        getattr(inner, "attr", getattr(inner, "id", ""))
        for inner in ast.walk(node)
        if isinstance(getattr(inner, "ctx", None), ast.Load)
    )
    return any(_RANK.search(name) or name == "get_rank" for name in names)


@rule(
    "DDP005",
    "`set_epoch` is never called",
    topic="each epoch has a new order",
    remedy="Call `sampler.set_epoch(epoch)` at the start of each epoch.",
    applies=data_parallel,
)
def epoch_never_set(program: Program) -> Iterator[Hit]:
    """Find samplers that shuffle each epoch into the same order."""
    calls = list(program.methods("set_epoch"))
    if any(not step.receiver.things for step in calls) or _sets_elsewhere(program, calls):
        return  # it may be this sampler
    set_there = {thing for step in calls for thing in step.receiver.things}
    for loader, again in training_loops(program):
        sampler = sampler_of(loader.step) if loader.step else None
        if sampler is None or loader.escaped or not again:
            continue
        for thing in sampler.of_kind("sampler"):
            if thing.step is None or thing.escaped:
                continue
            if thing in set_there or loader in set_there:
                if is_false(thing.step.argument(3, "shuffle")) and thing.of_class is None:
                    yield at(
                        next(s for s in calls if s.receiver.things & {thing, loader}),
                        f"The sampler of line {thing.step.node.lineno} does not shuffle, so this "
                        "call has no effect: every epoch has the same order and the same batches.",
                        "Leave `shuffle=False` out of the training sampler.",
                    )
            elif _shuffles(thing):
                yield at(
                    thing.step,
                    "`set_epoch` is never called on this sampler, so every epoch has the same "
                    "order and the same batches.",
                )
            elif calls and not _used(program, set_there):
                yield at(
                    calls[0],
                    "No loader uses this sampler: the training loader has the one of line "
                    f"{thing.step.node.lineno}, which does not shuffle.",
                    "Pass this sampler to the training loader.",
                )


def _sets_elsewhere(program: Program, calls: list[Step]) -> bool:
    """Return whether code that was not followed has a call of `set_epoch`."""
    followed = {step.node for step in calls}
    nodes = (node for source in program.sources for node in source.nodes)
    return any(
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "set_epoch"
        and node not in followed
        for node in nodes
    )


def _used(program: Program, samplers: set[Thing]) -> bool:
    """Return whether a loader is or uses one of these samplers."""
    loaders = program.things("loader")
    used = [sampler_of(loader.step) for loader in loaders if loader.step]
    return bool(samplers & {*loaders, *(t for value in used if value for t in value.things)})


def _shuffles(sampler: Thing) -> bool:
    assert sampler.step is not None
    if sampler.of_class is not None:
        node = sampler.of_class.node
        return isinstance(node, ast.ClassDef) and _method(node, "set_epoch") is not None
    return not is_false(sampler.step.argument(3, "shuffle")) and not sampler.step.spread


@rule(
    "DDP006",
    "Ranks have different numbers of samples",
    topic="each rank has its own samples",
    remedy="Pad the indices to a multiple of the number of ranks, or use DistributedSampler.",
    applies=any_part,
)
def uneven_shares(program: Program) -> Iterator[Hit]:
    """Find shares without padding: some ranks may then have one batch more."""
    for cls in _samplers(program):
        method = _method(cls, "__iter__")
        stride = next(_strides(method), None) if method and _uses_rank(cls) else None
        if stride is not None and not _evens_out(cls):
            yield Hit(
                stride,
                program.source,
                f"`{cls.name}` neither pads nor cuts its indices. If they don't divide evenly, "
                "some ranks have one index more, and wait in their last collective for the others.",
                function="__iter__",
            )
    first = next((step for step in program.steps if _meets_for_each_sample(step)), None)
    if first is None or has_mesh(program) or mentions(program, JOIN):
        return
    if not _evens_out_somewhere(program):
        yield at(
            first,
            "On n ranks, this loop goes over every n-th sample. If the samples don't divide "
            "evenly, some ranks have one sample more, and wait in an all-reduce for the ranks that "
            "have left the loop.",
        )


def _meets_for_each_sample(step: Step) -> bool:
    """Return whether all ranks must make this call for each sample of a share without padding."""
    guards = tuple(guard for guard in step.guards if SHARE not in guard.value.tags)
    chosen = len(guards) < len(step.guards)  # `if number % world_size == rank:`
    uneven = (chosen and step.loops) or any(_is_uneven(loop.over) for loop in step.loops)
    return bool(uneven) and all_ranks_meet(replace(step, guards=guards))


def _is_uneven(over: Value) -> bool:
    """Return whether a loop goes over every n-th sample, or over a loader of these."""
    if SHARE in over.deep_tags():
        return True
    datasets = [dataset for loader in over.of_kind("loader") for dataset in _datasets(loader)]
    return any(SHARE in value.deep_tags() for value in datasets)


def _datasets(loader: Thing) -> Iterator[Value]:
    """Yield the dataset of a loader, and the values from which it was made."""
    value = loader.step.argument(0, "dataset") if loader.step else None
    if value is None:
        return
    yield value
    for thing in value.deep():
        if thing.step is not None:
            yield from thing.step.values


def _evens_out_somewhere(program: Program) -> bool:
    """Return whether some code divides samples among ranks, and makes the shares equal."""
    for source in program.sources:
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        own = [node for node in source.tree.body if not isinstance(node, inner)]
        for part in (*source.functions, ast.Module(own, [])):
            if next(_strides(part), None) is not None and _evens_out(part):
                return True
    return False


def _strides(part: ast.AST) -> Iterator[ast.AST]:
    """Yield the start of each slice or range that takes every n-th element on n ranks.

    For a condition such as `number % world_size == rank`, yield the condition.
    """
    for node in ast.walk(part):
        if isinstance(node, ast.Slice) and node.step is not None:
            first, step = node.lower or node.step, node.step
        elif isinstance(node, ast.Compare) and is_modulo(node.left) and _loads_rank(node):
            first, step = node, node.left.right
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "range" and node.args[2:]:
            first, step = node.args[0], node.args[2]
        else:
            continue
        if re.search("replicas|world|size|ranks", ast.unparse(step), re.IGNORECASE):
            yield first


def _evens_out(part: ast.AST) -> bool:
    text = ast.unparse(part)
    if re.search(r"ceil|pad|drop|total_size|extend|cycle|resize|\+=|// [\w.]+\)? \*", text):
        return True
    chosen = {id(node.left) for node in _strides(part) if isinstance(node, ast.Compare)}
    evens_out = ast.Mod if chosen else (ast.FloorDiv, ast.Mod)
    divisions = (node for node in ast.walk(part) if id(node) not in chosen)
    return any(isinstance(getattr(node, "op", None), evens_out) for node in divisions)


@rule(
    "DDP007",
    "The local rank is used as the rank",
    topic="each rank has its own samples",
    remedy="Pass the rank among all ranks: `dist.get_rank()`, or RANK instead of LOCAL_RANK.",
    applies=any_part,
)
def local_rank_as_rank(program: Program) -> Iterator[Hit]:
    """Find local ranks that are used as the rank among all ranks."""
    ranks = [s for s in program.starts if LOCAL in s.kwargs.get("rank", Value()).tags]
    for thing in program.things("sampler"):
        step = thing.step
        rank = step.argument(2, "rank") if step and thing.of_class is None else None
        replicas = step.argument(1, "num_replicas") if step else None
        one_machine = program.parent or constant(replicas) == 1 or ranks
        if step and rank and LOCAL in rank.tags and not one_machine:
            yield at(
                step,
                "The sampler gets the local rank, which counts from 0 on each machine: on several "
                "machines, some ranks read the same samples, and other samples are never read.",
                sure=any_number_of_machines(program),
            )
    for step in [] if program.parent else ranks:
        yield at(
            step,
            "The process group gets the local rank, which counts from 0 on each machine: on "
            "several machines, two processes have the same rank, and the start hangs.",
            sure=False,
        )
