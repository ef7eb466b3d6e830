"""Collectives: all ranks must call them, in the same order, and wait for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, any_part, at, rule
from gradsync.review.flow.program import Program
from gradsync.review.flow.torch_api import METHODS
from gradsync.review.flow.values import (
    DATA,
    MAYBE_RANK,
    OWN,
    RANK,
    Departure,
    Guard,
    Step,
    Thing,
)
from gradsync.review.queries import (
    JOIN,
    all_ranks_join,
    all_ranks_meet,
    argument_node,
    function_around,
    has_mesh,
    is_true,
    is_wrapped,
    mentions,
)


def _name(step: Step) -> str:
    return step.collective or step.method or step.path.rpartition(".")[2]


def _joined_elsewhere(program: Program, step: Step, guard: Guard) -> bool:
    """Return whether the other ranks call the same collective in another branch."""
    leaves = _leaves(guard)
    for other in program.steps:
        if other is step or _name(other) != _name(step) or other.source is not step.source:
            continue
        if leaves and program.before(step, other):
            return True
        if any(RANK in g.value.tags and _differ(g, guard) for g in other.guards):
            return True
    return False


def _leaves(guard: Guard) -> bool:
    """Return whether a branch ends with `return` or `sys.exit()`, so the others go on after it."""
    branch = getattr(guard.node, "body" if guard.positive else "orelse", None)
    last = branch[-1] if isinstance(branch, list) and branch else None
    exits = isinstance(last, ast.Expr) and "exit(" in ast.unparse(last)
    return exits or isinstance(last, (ast.Return, ast.Continue, ast.Break))


def _others_call_unread(program: Program, guard: Guard) -> bool:
    """Return whether the other branch calls a function that we can't read: it may join, too."""
    return any(
        step.unread and step.method not in METHODS
        for step in program.steps
        if any(g.node is guard.node and g.positive != guard.positive for g in step.guards)
    )


def _differ(one: Guard, other: Guard) -> bool:
    return one.node is not other.node or one.positive != other.positive


@rule(
    "DDP015",
    "Only some ranks call a collective",
    topic="all ranks call each collective",
    remedy="Move the collective out of the branch, so that every rank calls it.",
    applies=any_part,
)
def on_some_ranks(program: Program) -> Iterator[Hit]:
    """Find collectives in a branch or a loop that depends on the rank."""
    yield from _groups_of_one_rank(program)
    for step in program.steps:
        sharded = step.method == "state_dict" and step.receiver.surely("fsdp")
        backward = step.method == "backward" and is_wrapped(step)
        if not sharded and not backward and not all_ranks_join(step):
            continue
        guard = next((g for g in step.guards if RANK in g.value.tags and not g.early), None)
        if guard is None or _joined_elsewhere(program, step, guard):
            continue
        if _others_call_unread(program, guard):
            continue
        line = getattr(guard.node, "lineno", 0)
        yield at(
            step,
            f"Because of the condition in line {line}, only some ranks call `{_name(step)}`. They "
            "wait in it for the other ranks, which never call it.",
        )


def _groups_of_one_rank(program: Program) -> Iterator[Hit]:
    """Find process groups whose ranks depend on the rank that makes them."""
    for step in program.calls("torch.distributed.new_group"):
        ranks = step.argument(0, "ranks")
        if ranks is None or RANK not in ranks.deep_tags() or step.on_some_ranks:
            continue
        if "use_local_synchronization" not in step.kwargs:
            yield at(
                step,
                "The list of ranks depends on the rank, but `new_group` is a collective of all "
                "ranks: they wait in it for each other with different lists.",
                "Make all groups on all ranks, in the same order, and keep the one with this rank.",
            )


@rule(
    "DDP016",
    "Some ranks leave before a collective",
    topic="all ranks call each collective",
    remedy="Call the collective on all ranks: put only the work of one rank into the branch.",
    applies=any_part,
)
def left_before(program: Program) -> Iterator[Hit]:
    """Find collectives after a `return`, `continue` or `break` of some ranks."""
    for step in program.steps:
        if not all_ranks_join(step):
            continue
        guard = next((g for g in step.guards if RANK in g.value.tags and g.early), None)
        if guard is not None and not _joined_elsewhere(program, step, guard):
            yield at(
                step,
                f"Some ranks leave in the branch of line {getattr(guard.node, 'lineno', 0)} and "
                f"never call `{_name(step)}`. The other ranks wait in it for them.",
            )
    yield from _loops_left_by_ranks(program)


def _loops_left_by_ranks(program: Program) -> Iterator[Hit]:
    """Find loops with collectives that some ranks leave because of their rank."""
    if has_mesh(program) or mentions(program, JOIN):
        return
    for departure in program.departures:
        met = [step for step in program.steps if _meets_in(step, departure)]
        if RANK not in departure.value.tags or not met:
            continue
        if any(guard.node is departure.statement for step in met for guard in step.guards):
            continue  # the collective has its own finding
        yield Hit(
            departure.node,
            departure.source,
            "Some ranks leave this loop. In the next iteration, the other ranks wait for them in "
            f"`{_name(met[0])}`, in line {met[0].node.lineno}.",
            "Decide on one rank, and broadcast the decision, so that all ranks leave together.",
            departure.function,
        )


@rule(
    "DDP017",
    "A collective depends on a rank's own samples",
    topic="all ranks call each collective",
    remedy="Reduce the value over all ranks first, so that the condition is the same on all ranks.",
    applies=any_part,
)
def depends_on_samples(program: Program) -> Iterator[Hit]:
    """Find collectives and backward passes under a condition on a rank's own values."""
    for step in program.steps:
        backward = step.method == "backward" and is_wrapped(step)
        if not backward and not all_ranks_join(step):
            continue
        guard = next(
            (g for g in step.guards if DATA in g.value.tags and RANK not in g.value.tags), None
        )
        if guard is not None:
            what = "the all-reduce of `backward`" if backward else f"`{_name(step)}`"
            yield at(
                step,
                f"The condition in line {getattr(guard.node, 'lineno', 0)} depends on this rank's "
                f"own samples. If it differs between ranks, some of them wait forever in {what}.",
            )
    yield from _loops_left_by_samples(program)
    yield from _skipped_without_memory(program)


def _skipped_without_memory(program: Program) -> Iterator[Hit]:
    """Find ranks that go on without their backward pass after they have run out of memory."""
    for step in program.backwards:
        if not step.loops or not is_wrapped(step) or mentions(program, JOIN):
            continue
        loop = step.loops[-1].node
        tries = [node for node in ast.walk(loop) if isinstance(node, ast.Try)]
        around = [node for node in tries if _is_in(step.node, node.body)]
        for handler in (handler for node in around for handler in node.handlers):
            text = ast.unparse(handler)
            if re.search("OutOfMemory|out of memory", text) and not _raises(handler.body):
                yield Hit(
                    handler,
                    step.source,
                    "A rank that runs out of memory skips `backward`. The other ranks wait in its "
                    "all-reduce, which this rank then joins with its next batch.",
                    "End the program, or use a smaller batch on all ranks.",
                    step.function,
                )


def _is_in(node: ast.Call, body: list[ast.stmt]) -> bool:
    return body[0].lineno <= node.lineno <= (body[-1].end_lineno or 0)


def _raises(body: list[ast.stmt]) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in body)


def _loops_left_by_samples(program: Program) -> Iterator[Hit]:
    """Find loops with collectives that ranks may leave in different rounds."""
    if has_mesh(program) or mentions(program, JOIN):
        return
    for departure in program.departures:
        tags = departure.value.tags
        if OWN not in tags or tags & {RANK, MAYBE_RANK}:
            continue
        met = [step for step in program.steps if _meets_in(step, departure)]
        guards = [g for s in met for g in s.guards if DATA in g.value.tags]
        if not met or any(guard.node is departure.statement for guard in guards):
            continue  # the collective has its own finding
        backward = met[-1].method == "backward"
        what = "the all-reduce of `backward`" if backward else f"`{_name(met[-1])}`"
        yield Hit(
            departure.node,
            departure.source,
            "A rank may leave this loop because of its own samples. The ranks that continue then "
            f"wait in {what}, in line {met[-1].node.lineno}, for the ranks that have left.",
            function=departure.function,
        )


def _meets_in(step: Step, departure: Departure) -> bool:
    """Return whether all ranks must make this call in each iteration of a loop that some leave."""
    return any(loop in departure.loops for loop in step.loops) and all_ranks_meet(step)


@rule(
    "DDP018",
    "An asynchronous collective is never waited for",
    topic="each rank waits for asynchronous work",
    remedy="Keep the handle and call its `wait()` before you use the tensor.",
    applies=any_part,
)
def never_waited(program: Program) -> Iterator[Hit]:
    """Find handles of asynchronous work that are never used."""
    for work in program.things("work"):
        step = work.step
        if step is None or not _is_asynchronous(step):
            continue
        if step.discarded or _name_never_read(work):
            yield at(
                step,
                f"`{_name(step)}` returns immediately, but `wait()` of its handle is never called: "
                "the tensor may still change while it is used.",
            )


def _is_asynchronous(step: Step) -> bool:
    name = step.path.rpartition(".")[2]
    if name in ("isend", "irecv"):  # a temporary tensor can't be used afterwards
        return not isinstance(argument_node(step, 0, "tensor"), ast.Call)
    return is_true(step.kwargs.get("async_op"))


def _name_never_read(work: Thing) -> bool:
    assert work.step is not None
    around = function_around(work.step)
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and node.value is work.step.node:
            target = node.targets[0]
            if not isinstance(target, ast.Name) or len(node.targets) > 1:
                return False
            return not any(
                isinstance(inner, ast.Name)
                and inner.id == target.id
                and isinstance(inner.ctx, ast.Load)
                for inner in ast.walk(around)
            )
    return False
