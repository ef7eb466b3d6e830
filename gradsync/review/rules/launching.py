"""Launching: the end of the process group, the number of ranks, and the port."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, launched, rule, whole_script
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import UNKNOWN, Step
from gradsync.review.queries import constant, function_around, mentions, same_text

_ENDS = re.compile("cleanup|clean_up|destroy|teardown|tear_down|shutdown|finali[sz]e|end_training")
_ENVIRONMENT = re.compile("MASTER_PORT|environ|getenv")
_PORT = re.compile(r"^tcp://[^:]*:\d+$")


@rule(
    "DDP019",
    "The process group is never destroyed",
    topic="the process group is destroyed",
    remedy="Call `dist.destroy_process_group()` at the end.",
    applies=whole_script,
)
def never_destroyed(program: Program) -> Iterator[Hit]:
    """Find programs that never destroy the process group."""
    if mentions(program, "destroy_process_group"):
        return
    for step in program.steps:
        name = step.method or getattr(step.node.func, "id", step.path)
        if _ENDS.search(name) and not step.path.startswith(("torch.", "os.")):
            return
    yield at(
        program.starts[0],
        "This process group is never destroyed. Its threads still run when Python exits, and can "
        "then hang or abort the process.",
    )


@rule(
    "DDP020",
    "The number of ranks is hard-coded",
    topic="the launcher decides ranks, port and device",
    remedy="Use `dist.get_world_size()`, or WORLD_SIZE.",
    applies=launched,
)
def ranks_are_fixed(program: Program) -> Iterator[Hit]:
    """Find numbers of ranks that are correct for only one launch."""
    for step in program.starts:
        size = constant(step.kwargs.get("world_size"))
        if isinstance(size, int) and size > 1 and not _same_everywhere(program):
            yield at(step, f"The group waits for {size} ranks, even if the launcher starts fewer.")
    for thing in program.things("sampler") if program.starts else ():
        size = constant(thing.step.argument(1, "num_replicas")) if thing.step else None
        fixed = thing.of_class is None and isinstance(size, int) and size > 1
        if thing.step and fixed and not _same_everywhere(program):
            yield at(thing.step, f"The samples are always split into {size} shares.")
    yield from _environment_is_fixed(program)
    for step in program.steps:
        if step.collective == "all_reduce" and step.node.args:
            for node in _fixed_divisions(step):
                yield Hit(
                    node,
                    step.source,
                    "The sum over all ranks is divided by a fixed number, so the result is the "
                    "mean only for this number of ranks.",
                    function=step.function,
                )


def _environment_is_fixed(program: Program) -> Iterator[Hit]:
    """Find a rank that the script writes into the environment of every process."""
    written = {
        step.args[0].const: step
        for step in program.calls("os.environ.__setitem__")
        if step.args[1].const is not UNKNOWN and not step.guards
    }
    size = written["WORLD_SIZE"].args[1].const if "WORLD_SIZE" in written else 1
    if "RANK" in written and str(size) != "1" and program.starts and not program.parent:
        yield at(
            written["RANK"],
            f"Every process gets rank {written['RANK'].args[1].const}, so the group never has its "
            f"{size} ranks, and `init_process_group` waits forever.",
            "Start the script with torchrun, which sets RANK and WORLD_SIZE.",
        )


def _same_everywhere(program: Program) -> bool:
    """Return whether the script, or the test that it is, starts its ranks itself."""
    return mentions(program, r"\bmp\.|multiprocessing|^import (pytest|unittest)|TestCase")


def _fixed_divisions(step: Step) -> Iterator[ast.AST]:
    reduced = step.node.args[0]
    for node in ast.walk(function_around(step)):
        if not isinstance(node, (ast.AugAssign, ast.BinOp)) or not isinstance(node.op, ast.Div):
            continue
        value = node.target if isinstance(node, ast.AugAssign) else node.left
        by = node.value if isinstance(node, ast.AugAssign) else node.right
        fixed = isinstance(by, ast.Constant) and isinstance(by.value, int) and by.value > 1
        later = node.lineno >= step.node.lineno
        if fixed and later and (same_text(value, reduced) or same_text(value, _item(reduced))):
            yield node


def _item(tensor: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(tensor, "item", ast.Load()), [], [])


@rule(
    "DDP021",
    "The port is hard-coded",
    topic="the launcher decides ranks, port and device",
    remedy='Use `os.environ.setdefault("MASTER_PORT", ...)`, or leave the port to torchrun.',
    applies=launched,
)
def port_is_fixed(program: Program) -> Iterator[Hit]:
    """Find ports that a second run on the same machine can't use."""
    if not program.entry and not program.starts:
        return  # an unused function, or one after which another one starts the group
    for step in (*program.parent, *program.steps):
        if step.path != "os.environ.__setitem__":
            continue
        name, port = step.args[0].const, step.args[1].const
        if name == "MASTER_PORT" and isinstance(port, (str, int)) and str(port) != "0":
            if any(_ENVIRONMENT.search(ast.unparse(g.test)) for g in step.guards if g.test):
                continue
            yield at(step, _collides(port) + _overrides(program))
    for step in program.starts:
        method = constant(step.argument(1, "init_method"))
        if isinstance(method, str) and _PORT.match(method):
            yield at(step, _collides(method.rpartition(":")[2]))


def _overrides(program: Program) -> str:
    by_launcher = all("rank" not in start.kwargs for start in program.starts)
    overrides = by_launcher and program.starts and not program.parent
    return " It also overrides the launcher's port." if overrides else ""


def _collides(port: object) -> str:
    return (
        f"Port {port} is fixed: a second run on this machine fails with `Address already in use`."
    )
