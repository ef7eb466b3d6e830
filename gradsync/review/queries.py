"""Functions that several rules use to examine a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gradsync.review.flow.conditions import facts_of
from gradsync.review.flow.program import Program
from gradsync.review.flow.project import Source
from gradsync.review.flow.values import (
    AGAIN,
    ELEMENT,
    LOCAL,
    MAYBE_RANK,
    RANK,
    SHARE,
    SPAWNED,
    Loop,
    Step,
    Thing,
    Value,
    mixed,
)

JOIN = r"with [^\n]*\b[Jj]oin\("  # loops of unequal length are fine inside `Join`
_DEEPEST = 6
_POSITIONS = {"barrier": 0, "all_reduce": 2, "broadcast": 2, "all_gather": 2}  # of `group`
# Functions with the same result on all ranks, such as `os.path.exists("checkpoint.pt")`.
_SAME = re.compile(
    r"^os\.path\.(exists|isfile|isdir|join)$|^(pathlib\.)?Path$|\.(exists|is_file)$"
    r"|^(isinstance|hasattr)$"
)
_COLLECTIVE_CALLS = (
    "parallel.DistributedDataParallel", ".FullyShardedDataParallel", ".fully_shard",
    "distributed.checkpoint.save", "distributed.checkpoint.load",
    "state_dict.get_model_state_dict", "state_dict.get_state_dict",
)  # fmt: skip
_COLLECTIVE_METHODS = ("full_tensor", "consolidate_state_dict")
_GROUPS = {"process_group", "mesh", "device_mesh", "no_dist"}
_MACHINES = (
    r"n_?nodes(?![= ]1\b)|(args\.|opt\.|--)num[-_](nodes|machines)|(node|machine)_rank|NODE_RANK|"
    r"SLURM_|GROUP_RANK|(args|opt|config)\.nodes\b|OMPI_|"
    r"""MASTER_ADDR["']\]\s*=\s*["'](?!localhost|127|0)"""
)
_ONE_MACHINE = (
    r"localhost|127\.0\.0\.1|standalone|[Ss]ingle[-_ ]?([Nn]ode|[Mm]achine)|n_?nodes[= ]1\b|"
    r"nproc[-_]per[-_]node"
)
_ADDRESS = (
    r"""["'](tcp://)?(?!127|0)\d{1,3}(\.\d{1,3}){3}\b"""
    r"""|["']--(master|server)[-_](ip|addr(ess)?)["'][^\n]*required=True"""
)
_WITH_BATCH_NORM = re.compile(
    r"^torchvision\.models\..*(resnet|resnext|densenet|mobilenet|efficientnet|regnet|mnasnet|_bn$)"
    r"|\.BatchNorm[123]d$"
)
_MESH = ("init_device_mesh", "DeviceMesh", "parallelize_module", "initialize_model_parallel")


def training_loops(program: Program) -> Iterator[tuple[Thing, bool]]:
    """Yield each training loader, and whether training goes over it several times."""
    made = {loader for loader in program.things("loader") if loader.step is not None}
    seen = set()
    for step in program.backwards:
        for number, loop in enumerate(step.loops):
            for loader in loop.over.of_kind("loader"):
                if loader not in seen and loader in made:
                    seen.add(loader)
                    yield loader, any(map(repeats, step.loops[:number])) or AGAIN in loop.over.tags
    inside = {loop for step in program.backwards for loop in step.loops}
    begun = [t for step in program.calls("builtins.iter") for t in step.result.of_kind("loader")]
    for step in program.calls("builtins.next"):
        for loader in step.args[0].of_kind("loader") if step.args else ():
            in_loop = step.loops and step.loops[-1] in inside and not step.evaluating
            if loader not in seen and loader in made and in_loop:
                seen.add(loader)
                yield loader, AGAIN in step.args[0].tags or begun.count(loader) > 1


def repeats(loop: Loop) -> bool:
    """Return whether a loop is not the loop over `range(1)`."""
    return loop.over.const != range(1)


def sampler_of(loader: Step) -> Value | None:
    """Return the sampler of a loader or of its batch sampler; None without one."""
    batches = loader.argument(4, "batch_sampler")
    if batches is not None and batches.const is not None:
        inner = [thing.inner for thing in batches.of_kind("batch sampler")]
        return inner[0] if inner else batches
    sampler = loader.argument(3, "sampler")
    return None if sampler is None or sampler.const is None else sampler


def has_distributed_sampler(loader: Step) -> bool:
    """Return whether a loader's sampler certainly gives each rank its share."""
    sampler = sampler_of(loader)
    return sampler is not None and bool(sampler.of_kind("sampler"))


def depends_on_rank(value: Value, depth: int = 0) -> bool:
    """Return whether a value, or a value from which it was made, may differ between ranks."""
    if value.deep_tags() & {RANK, MAYBE_RANK, SHARE}:
        return True
    if depth > _DEEPEST:
        return True
    for thing in value.deep():
        step = thing.step
        if thing.of_class is not None and "rank" in ast.unparse(thing.of_class.node).lower():
            return True
        passed = step.values if step is not None else ()
        if any(depends_on_rank(part, depth + 1) for part in (*passed, thing.inner)):
            return True
    return False


def surely_on_every_rank(step: Step) -> bool:
    """Return whether no condition around a call can depend on the rank."""
    if step.on_some_ranks:
        return False
    return not any(g.value.without(ELEMENT).blank and _asks_elsewhere(g.node) for g in step.guards)


def _asks_elsewhere(node: ast.AST) -> bool:
    """Return whether a condition calls a function whose result may depend on the rank."""
    test = getattr(node, "test", None)
    calls = [] if test is None else [n for n in ast.walk(test) if isinstance(n, ast.Call)]
    return not all(_SAME.search(ast.unparse(call.func)) for call in calls)


def is_true(value: Value | None) -> bool:
    return value is not None and value.const is True


def is_false(value: Value | None) -> bool:
    return value is not None and value.const is False


def constant(value: Value | None) -> object:
    """Return an argument's constant: None if it is not passed, UNKNOWN if it is not constant."""
    return None if value is None else value.const


def function_around(step: Step) -> ast.AST:
    """Return the function that contains a call, or the module."""
    line = step.node.lineno
    found: ast.AST = step.source.tree
    for node in step.source.functions:
        if node.lineno <= line <= (node.end_lineno or line):
            found = node  # inner functions come later
    return found


def same_text(one: ast.AST | None, other: ast.AST | None) -> bool:
    return one is not None and other is not None and ast.unparse(one) == ast.unparse(other)


def argument_node(step: Step, position: int, name: str) -> ast.expr | None:
    """Return the expression of an argument; None if it is not passed."""
    for keyword in step.node.keywords:
        if keyword.arg == name:
            return keyword.value
    return step.node.args[position] if position < len(step.node.args) else None


def mentions(program: Program, pattern: str) -> bool:
    """Return whether a file of the program contains this pattern."""
    return any(re.search(pattern, source.text) for source in program.sources)


def names_rank(step: Step) -> bool:
    """Return whether a message says which rank or GPU it is from."""
    named = re.search("rank|gpu|device", ast.unparse(step.node), re.IGNORECASE)
    return named is not None or bool(mixed(step.values).tags & {RANK, MAYBE_RANK})


def has_mesh(program: Program) -> bool:
    """Return whether the ranks form smaller groups, whose ranks may need the same samples."""
    return next(program.calls(*_MESH), None) is not None


def has_groups(program: Program) -> bool:
    """Return whether models are wrapped for smaller groups, whose ranks may train alone."""
    wrappers = [wrapper.step for wrapper in program.wrappers if wrapper.step]
    return any("process_group" in step.kwargs for step in wrappers)


def models_of(value: Value) -> set[Thing]:
    """Return the models that parameters, wrappers and outputs belong to."""
    found, pending = set(), list(value.deep())
    while pending:
        thing = pending.pop()
        if thing not in found:
            found.add(thing)
            pending += thing.inner.deep()
    return {t for t in found if t.kind in ("model", "ddp", "fsdp", "compiled", "instance")}


def classes_in(source: Source) -> Iterator[ast.ClassDef]:
    """Yield the classes of a file."""
    return (node for node in source.nodes if isinstance(node, ast.ClassDef))


def source_of(program: Program, node: ast.AST) -> Source | None:
    """Return the file that contains a node."""
    return next((source for source in program.sources if node in source.node_set), None)


def place(program: Program, step: Step, node: ast.AST) -> str:
    """Return "line 3", or "train.py:3" if the node is not in the file of the call."""
    line, source = getattr(node, "lineno", 0), source_of(program, node)
    elsewhere = source is not None and source is not step.source
    return f"{Path(source.path).name}:{line}" if source and elsewhere else f"line {line}"


def all_ranks_join(step: Step) -> bool:
    """Return whether a call is a collective of all ranks, not of a smaller group."""
    if step.path == "torch.distributed.new_group" or step.method in _COLLECTIVE_METHODS:
        return True
    if step.method == "state_dict" and step.receiver.surely("fsdp"):
        return True
    if step.path.endswith(_COLLECTIVE_CALLS):
        return not _GROUPS & set(step.kwargs)
    if not step.collective or step.spread:
        return False
    group = step.argument(_POSITIONS.get(step.collective, 9), "group")
    return group is None or group.const is None


def is_wrapped(step: Step) -> bool:
    """Return whether a backward pass averages the gradients over all ranks."""
    values = (step.receiver, *step.args)
    outputs = [thing for value in values for thing in value.deep() if thing.kind == "output"]
    wrappers = [w.step for output in outputs for w in output.inner.of_kind("ddp", "fsdp")]
    return any(wrapper is None or "process_group" not in wrapper.kwargs for wrapper in wrappers)


def batch_norms(program: Program) -> list[Step]:
    """Return the calls that make BatchNorm layers, or models that certainly have them."""
    return [step for step in program.steps if _WITH_BATCH_NORM.search(step.path)]


def on_several_machines(program: Program) -> bool:
    """Return whether a program mentions machines, so that its ranks may be on several of them."""
    return mentions(program, _MACHINES) and not _meets_on_this_machine(program)


def _meets_on_this_machine(program: Program) -> bool:
    """Return whether the script always sets MASTER_ADDR to the machine on which it runs."""
    addresses = [
        (step.args[1].const, step.guards)
        for step in (*program.parent, *program.calls("os.environ.__setitem__"))
        if step.path == "os.environ.__setitem__" and step.args[0].const == "MASTER_ADDR"
    ]
    here = ("localhost", "127.0.0.1")
    return bool(addresses) and all(to in here and not guards for to, guards in addresses)


def any_number_of_machines(program: Program) -> bool:
    """Return whether the ranks may be on several machines because nothing in the script says no.

    If the script does not pass a rank to the process group, its launcher decides on the machines.
    """
    by_launcher = not program.parent and any("rank" not in s.kwargs for s in program.starts)
    return on_several_machines(program) or (by_launcher and not mentions(program, _ONE_MACHINE))


def share_files(program: Program) -> bool:
    """Return whether ranks may use the same files and GPUs.

    If the script names a machine by its address, each rank is often on a machine of its own.
    """
    return not mentions(program, _ADDRESS)


def of_one_machine(program: Program, value: Value) -> bool:
    """Return whether a value depends on the rank only by the rank on this machine."""
    return LOCAL in value.tags or (SPAWNED in value.tags and program.spawns_per_machine)


def all_ranks_meet(step: Step) -> bool:
    """Return whether a call is a collective of all ranks, or the all-reduce of a backward pass."""
    without_sync = any(context.of_kind("no_sync") for context in step.contexts)
    return ranks_wait(step) and not step.on_some_ranks and not without_sync


def ranks_wait(step: Step) -> bool:
    """Return whether a rank waits in a call for all ranks: a collective or a backward pass."""
    return all_ranks_join(step) or (step.method == "backward" and is_wrapped(step))


def facts_agree(one: Step, other: Step) -> bool:
    """Return whether no condition excludes that both calls run."""
    some, others = facts_of(one.guards), facts_of(other.guards)
    return all(others.get(text, sense) is sense for text, sense in some.items())
