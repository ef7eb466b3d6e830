"""Loaders: they need a process group, different samples on each rank, and the right batch size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, data_parallel, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import OF_ONE_RANK, SAME, SHARE, TOO_EARLY, WORLD, Step, Value
from gradsync.review.queries import (
    argument_node,
    constant,
    depends_on_rank,
    function_around,
    has_distributed_sampler,
    has_mesh,
    is_true,
    same_text,
    sampler_of,
    training_loops,
)

_OF_ALL = re.compile(r"(^|_)(global|total|effective)_(\w+_)?batch(_?size)?$", re.IGNORECASE)


@rule(
    "DDP001",
    "A loader or sampler is made before the process group",
    topic="process group before loaders",
    remedy="Call `init_process_group` first, then make samplers and loaders.",
    applies=whole,
)
def made_too_early(program: Program) -> Iterator[Hit]:
    """Find loaders and samplers that use the process group before it exists."""
    start = program.starts[0]
    for thing in program.things("sampler", "loader"):
        step = thing.step
        if step is None or not program.before(step, start) or step.run != start.run:
            continue
        # Under a condition on `is_initialized()`, the sampler is not made before the group.
        asked = any(TOO_EARLY in guard.value.tags for guard in step.guards)
        if (
            thing.kind == "sampler"
            and thing.of_class is None
            and not asked
            and _asks_the_group(step)
        ):
            yield at(
                step,
                "DistributedSampler gets the rank and the number of ranks from the process group, "
                f"but the group is made only in line {start.node.lineno}.",
            )
        elif thing.kind == "loader" and _depends_on_the_group(step):
            yield at(
                step,
                "`is_initialized()` is still false here, because the process group is made only "
                f"in line {start.node.lineno}: the loader gets no distributed sampler, and every "
                "rank trains on the same samples.",
            )


def _asks_the_group(step: Step) -> bool:
    return not step.spread and (
        step.argument(1, "num_replicas") is None or step.argument(2, "rank") is None
    )


def _depends_on_the_group(step: Step) -> bool:
    values = [value for value in (sampler_of(step), step.argument(2, "shuffle")) if value]
    values += [guard.value for guard in step.guards]
    return any(TOO_EARLY in value.deep_tags() for value in values)


@rule(
    "DDP002",
    "The training loader has no distributed sampler",
    topic="each rank has its own samples",
    remedy="Pass `sampler=DistributedSampler(dataset)` and leave `shuffle` out.",
    applies=data_parallel,
)
def no_sampler(program: Program) -> Iterator[Hit]:
    """Find training loaders that give every rank all samples."""
    if has_mesh(program):
        return
    yield from _same_batches(program)
    made = [thing.step for thing in program.things("loader") if thing.step]
    sharded = [step for step in made if has_distributed_sampler(step)]
    over = [loop.over.of_kind("loader") for step in program.backwards for loop in step.loops]
    phases = {t for loaders in over for t in loaders if {x.step for x in loaders} & set(sharded)}
    shares = (s for s in program.backwards if any(SHARE in g.value.tags for g in s.guards))
    chosen = {t for step in shares for loop in step.loops for t in loop.over.of_kind("loader")}
    other_modes = {(g.node, not g.positive) for step in sharded for g in step.guards}
    for loader, _ in training_loops(program):
        step = loader.step
        if step is None or step.spread or step.on_some_ranks or loader.of_class is not None:
            continue
        # The same loop trains with one loader and validates with the other, or each rank trains on
        # the batches with its own numbers.
        if loader in phases or loader in chosen:
            continue
        sampler, dataset = sampler_of(step), step.argument(0, "dataset")
        if sampler is not None and not _ignores_ranks(sampler.kinds()):
            continue
        if dataset is None or depends_on_rank(dataset) or _depends_on_the_group(step):
            continue
        if other_modes.intersection((guard.node, guard.positive) for guard in step.guards):
            continue
        shuffled = is_true(step.argument(2, "shuffle"))
        if not shuffled and not dataset.of_kind("dataset"):
            continue  # an iterable dataset may divide its samples itself
        if not shuffled and constant(step.argument(2, "shuffle")) not in (False, None):
            continue  # the order is not known, so the message would be a guess
        order = "in a different order" if shuffled else "in the same order"
        yield at(
            step,
            f"Every rank trains on all samples, {order}, instead of on its own share: N ranks do "
            "N times the work of one.",
            sure=_is_the_same_everywhere(dataset),
        )


def _is_the_same_everywhere(dataset: Value) -> bool:
    """Return whether a dataset is read, not collected on this rank or made by unknown code."""
    made = [thing.step for thing in dataset.things if thing.step]
    return dataset.surely("dataset") and not any(arg.parts for step in made for arg in step.args)


def _same_batches(program: Program) -> Iterator[Hit]:
    """Find batches that the script takes from its samples at the same positions on all ranks."""
    if program.things("loader", "sampler") or not program.entry:  # arguments are not known
        return
    outputs = (
        thing.step
        for backward in program.backwards
        for value in (backward.receiver, *backward.args)
        for thing in value.deep()
        if thing.kind == "output" and backward.loops
    )
    for step in outputs:
        if step and any(SAME in arg.tags and not arg.tags & OF_ONE_RANK for arg in step.args):
            yield at(
                step,
                "The position of this batch does not depend on the rank, so every rank trains on "
                "the same batches: N ranks do the work of one.",
                "Give each rank other positions, such as `position = rank * batch_size`, and "
                "advance by the batches of all ranks.",
            )
            return


def _ignores_ranks(kinds: set[str]) -> bool:
    return bool(kinds) and kinds <= {"other sampler"}


@rule(
    "DDP003",
    "A loader has a sampler and `shuffle=True`",
    topic="each rank has its own samples",
    remedy="Leave `shuffle` out of the loader. DistributedSampler shuffles.",
    applies=lambda program: bool(program.things("loader")),
)
def sampler_and_shuffle(program: Program) -> Iterator[Hit]:
    """Find loaders for which PyTorch raises a ValueError."""
    for loader in program.things("loader"):
        step = loader.step
        if step is None or not is_true(step.argument(2, "shuffle")):
            continue
        sampler = step.argument(3, "sampler")
        if sampler is not None and sampler.surely("sampler", "other sampler"):
            text = "DataLoader raises a ValueError if it gets both a sampler and `shuffle=True`."
            yield at(step, text)


@rule(
    "DDP008",
    "The batch size of all ranks is confused with the batch size of one rank",
    topic="each loader has the batch size of one rank",
    remedy="Divide the batch size by the number of ranks.",
    applies=data_parallel,
)
def batch_of_all_ranks(program: Program) -> Iterator[Hit]:
    """Find loaders with the batch size of all ranks, and step counts that ignore the ranks."""
    for loader in program.things("loader"):
        step = loader.step
        if step is None or not has_distributed_sampler(step):
            continue
        size, node = step.argument(1, "batch_size"), argument_node(step, 1, "batch_size")
        name = getattr(node, "attr", getattr(node, "id", ""))
        grows = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if node and size and (grows if WORLD in size.tags else _OF_ALL.search(name)):
            yield at(
                step,
                f"This rank's loader has the batch size `{ast.unparse(node)}`, so all N ranks "
                "together use N times as many samples in a step.",
            )
        yield from _steps_without_ranks(step)


def _steps_without_ranks(loader: Step) -> Iterator[Hit]:
    """Yield `len(dataset) // batch_size` near a loader that has a share of the dataset."""
    dataset, size = argument_node(loader, 0, "dataset"), argument_node(loader, 1, "batch_size")
    around = function_around(loader)
    divided = {
        id(node.left)
        for node in ast.walk(around)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv))
    }
    for node in ast.walk(around):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Div, ast.FloorDiv)):
            continue
        counted = node.left
        if not (isinstance(counted, ast.Call) and getattr(counted.func, "id", "") == "len"):
            continue
        same = counted.args and same_text(counted.args[0], dataset) and same_text(node.right, size)
        if same and id(node) not in divided:
            yield Hit(
                node,
                loader.source,
                "This counts the batches of the complete dataset. Each rank has only its share, "
                "with N times fewer batches.",
                "Use `len(loader)`, or divide by the number of ranks.",
                loader.function,
            )
