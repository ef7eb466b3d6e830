"""Collectives: all ranks must call them, in the same order, and wait for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from gradsync.review.findings import Hit, any_part, at, rule
from gradsync.review.flow.program import Program
from gradsync.review.flow.torch_api import METHODS
from gradsync.review.flow.values import (
    CLOCK,
    DATA,
    MAYBE_RANK,
    OWNS,
    RANK,
    UNORDERED,
    Departure,
    Guard,
    Step,
    Thing,
    Value,
)
from gradsync.review.queries import (
    JOIN,
    all_ranks_meet,
    argument_node,
    batch_norms,
    function_around,
    has_groups,
    has_mesh,
    is_false,
    is_true,
    is_wrapped,
    mentions,
    models_of,
    place,
    ranks_wait,
    repeats,
    source_of,
)

_ROOTS = {  # the position and the name of the rank that sends or receives
    "broadcast": (1, "src"), "broadcast_object_list": (1, "src"), "reduce": (1, "dst"),
    "scatter": (2, "src"), "gather": (2, "dst"),
}  # fmt: skip


def _because_of(program: Program, step: Step, guard: Guard) -> str:
    return f"Because of the condition in {place(program, step, guard.node)},"


def _name(step: Step) -> str:
    return step.collective or step.method or step.path.rpartition(".")[2]


def _joined_elsewhere(program: Program, step: Step, guard: Guard) -> bool:
    """Return whether the other ranks call the same collective in another branch."""
    leaves = _leaves(guard)
    for other in program.steps:
        if other is step or _name(other) != _name(step) or other.source is not step.source:
            continue
        if not _name(step) and not _broadcasts_buffers(other):
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
    yield from _in_the_order_of_a_set(program)
    has_buffers = not all(
        is_false(s.kwargs.get("track_running_stats")) for s in batch_norms(program)
    )
    for step in program.steps:
        sharded = any(output.inner.surely("fsdp") for output in _outputs(step))
        forward = sharded or (has_buffers and _broadcasts_buffers(step))
        if not forward and not ranks_wait(step):
            continue
        guard = next((g for g in step.guards if RANK in g.value.tags and not g.early), None)
        if guard is None or _done_elsewhere(program, step, guard):
            continue
        where = f"{_because_of(program, step, guard)} only some ranks "
        if sharded:
            yield at(
                step,
                f"{where}call the wrapped model. Its forward pass gathers the parameters, and the "
                "other ranks don't take part.",
            )
            return
        if forward:
            yield at(
                step,
                f"{where}call the wrapped model. Its forward pass first broadcasts the buffers of "
                "BatchNorm, in evaluation mode, too, and the other ranks don't take part.",
                "Call `model.module` here, or evaluate on all ranks.",
            )
            return
        yield at(
            step,
            f"{where}call `{_name(step)}`. They wait in it for the other ranks, which never call "
            "it.",
        )


def _done_elsewhere(program: Program, step: Step, guard: Guard) -> bool:
    """Return whether the other ranks do the same, or may do it in a function that we can't read."""
    return _joined_elsewhere(program, step, guard) or _others_call_unread(program, guard)


def _outputs(step: Step) -> list[Thing]:
    """Return the outputs that a call of a model makes."""
    return [thing for thing in step.result.of_kind("output") if thing.step is step]


def _broadcasts_buffers(step: Step) -> bool:
    """Return whether this is a call of a model in DistributedDataParallel."""
    outputs = _outputs(step)
    wrappers = [wrapper for output in outputs for wrapper in output.inner.of_kind("ddp")]
    return (
        bool(wrappers)
        and all(output.inner.surely("ddp") for output in outputs)
        and not any(is_false(w.step.kwargs.get("broadcast_buffers")) for w in wrappers if w.step)
    )


def _in_the_order_of_a_set(program: Program) -> Iterator[Hit]:
    """Find collectives in a loop over a set of tensors, which are ordered by their addresses."""
    for step in program.steps:
        sets = [loop for loop in step.loops if UNORDERED in loop.over.tags]
        if step.collective and any(loop.over.of_kind("params") for loop in sets):
            yield at(
                step,
                "A set of tensors has another order in each process, so the ranks call "
                f"`{_name(step)}` for different tensors at the same time.",
                "Go over a list, in the same order on all ranks.",
            )
            return


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
    "DDP042",
    "Only some ranks update the model",
    topic="all ranks make the same updates",
    remedy="Do this on all ranks.",
    applies=lambda program: bool(program.wrappers or program.sharded) and not has_groups(program),
)
def updated_on_some_ranks(program: Program) -> Iterator[Hit]:
    """Find steps of optimizers and schedulers, and loaded parameters, of some ranks only."""
    for step in program.methods("step", "load_state_dict"):
        loads = step.method == "load_state_dict"
        trains = any(program.before(step, backward) for backward in program.backwards)
        if loads and not (trains and _after_wrapping(program, step)):
            continue
        if not loads and not step.receiver.surely("optimizer", "scheduler", "scaler"):
            continue
        guard = next((g for g in step.guards if RANK in g.value.tags), None)
        if guard is not None and not _done_elsewhere(program, step, guard):
            kind = next(iter(step.receiver.kinds()))
            what = "learning rates" if kind == "scheduler" else "models"
            yield at(
                step,
                f"{_because_of(program, step, guard)} only some ranks do this. From here on, the "
                f"ranks have different {what}: averaged gradients don't make them equal again.",
            )


def _after_wrapping(program: Program, step: Step) -> bool:
    """Return whether this loads parameters that DistributedDataParallel has already broadcast."""
    models = models_of(step.receiver)
    wrappers = [w for w in program.wrappers if w in models or models & set(w.inner.things)]
    return any(w.step is not None and program.before(w.step, step) for w in wrappers)


@rule(
    "DDP043",
    "All ranks send before they receive",
    topic="each send meets a receive",
    remedy="Let every second rank receive first, or use `isend` or `batch_isend_irecv`.",
    applies=any_part,
)
def sends_in_a_circle(program: Program) -> Iterator[Hit]:
    """Find `send` and then `recv`, on all ranks."""
    calls = list(program.calls("torch.distributed.send", "torch.distributed.recv"))
    for send, receive in pairwise(calls):
        if not send.path.endswith("send") or not receive.path.endswith("recv"):
            continue
        target = send.argument(1, "dst")
        if target is None or RANK not in target.deep_tags() or send.stack != receive.stack:
            continue
        if not send.on_some_ranks and not receive.on_some_ranks:
            yield at(
                send,
                "`send` may wait until its message is received, but each rank receives only "
                f"afterwards, in line {receive.node.lineno}: all ranks wait for each other.",
            )


@rule(
    "DDP044",
    "The source of a collective is not in its group",
    topic="all ranks call each collective",
    remedy="Pass a rank of the group, such as its first one, or `group_src=0`.",
    applies=any_part,
)
def source_outside_of_the_group(program: Program) -> Iterator[Hit]:
    """Find collectives of smaller groups with the same source or destination in each group."""
    for step in program.steps:
        position, name = _ROOTS.get(step.collective, (0, ""))
        root, group = step.argument(position, name), step.kwargs.get("group", Value())
        rank = 0 if root is None else root.const
        groups = group.of_kind("group")
        if not name or not isinstance(rank, int) or not group.surely("group"):
            continue
        lists = [[part.const for part in made.inner.parts] for made in groups]
        if any(None in (made.inner.const,) for made in groups if not made.inner.parts):
            continue  # a group of all ranks
        known = [ranks for ranks in lists if ranks and all(isinstance(r, int) for r in ranks)]
        outside = len(known) == len(lists) and not any(rank in ranks for ranks in known)
        if outside or (group.tags & {RANK, MAYBE_RANK} and "group_src" not in step.kwargs):
            yield at(
                step,
                f"`{name}` is a rank among all ranks, and rank {rank} is not in "
                f"{'this group' if outside else 'each of these groups'}, so the call fails there.",
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
        if not ranks_wait(step):
            continue
        guard = next((g for g in step.guards if RANK in g.value.tags and g.early), None)
        if guard is not None and not _joined_elsewhere(program, step, guard):
            yield at(
                step,
                f"Some ranks leave in the branch of {place(program, step, guard.node)} and "
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
    """Find the first collective or backward pass under each condition on a rank's own values."""
    seen = set()
    for step in program.steps:
        if not ranks_wait(step):
            continue
        tags = ((guard, guard.value.tags) for guard in step.guards)
        guard = next((g for g, t in tags if t & {DATA, CLOCK} and RANK not in t), None)
        if guard is not None and guard.node not in seen:
            seen.add(guard.node)
            yield at(
                step,
                f"The condition in {place(program, step, guard.node)} depends on this rank's own "
                f"{_cause(guard.value)}. If it differs between ranks, some of them wait forever in "
                f"{_waits_in(step)}.",
            )
    yield from _loops_left_by_samples(program)
    yield from _skipped_without_memory(program)


def _skipped_without_memory(program: Program) -> Iterator[Hit]:
    """Find ranks that go on without their backward pass after they have run out of memory."""
    seen = set()
    for step in program.backwards:
        if not step.loops or not is_wrapped(step) or mentions(program, JOIN):
            continue
        for handler in (handler for handler, loops in step.handlers if loops):
            text = ast.unparse(handler)
            skips = re.search("OutOfMemory|out of memory", text) and not _raises(handler.body)
            if skips and handler not in seen:
                seen.add(handler)
                yield Hit(
                    handler,
                    source_of(program, handler) or program.source,
                    "A rank that runs out of memory skips `backward`. The other ranks wait in its "
                    "all-reduce, which this rank then joins with its next batch.",
                    "End the program, or use a smaller batch on all ranks.",
                    step.function,
                )


def _raises(body: list[ast.stmt]) -> bool:
    """Return whether a handler raises again if a rank has run out of memory."""
    for statement in body:
        if isinstance(statement, ast.If) and "memory" in ast.unparse(statement.test):
            return _raises(statement.body)
    return any(isinstance(statement, ast.Raise) for statement in body)


def _loops_left_by_samples(program: Program) -> Iterator[Hit]:
    """Find loops with collectives that ranks may leave in different rounds."""
    if has_mesh(program) or mentions(program, JOIN):
        return
    for departure in program.departures:
        tags = departure.value.tags
        if not tags & OWNS or tags & {RANK, MAYBE_RANK}:
            continue
        met = [step for step in program.steps if _meets_in(step, departure)]
        guards = [g for s in met for g in s.guards if DATA in g.value.tags]
        if not met or any(guard.node is departure.statement for guard in guards):
            continue  # the collective has its own finding
        yield Hit(
            departure.node,
            departure.source,
            f"A rank may leave this loop because of its own {_cause(departure.value)}. The ranks "
            f"that continue then wait in {_waits_in(met[-1])}, in line {met[-1].node.lineno}, for "
            "the ranks that have left.",
            function=departure.function,
        )


def _waits_in(step: Step) -> str:
    return "the all-reduce of `backward`" if step.method == "backward" else f"`{_name(step)}`"


def _cause(value: Value) -> str:
    return "clock" if CLOCK in value.tags else "samples"


def _meets_in(step: Step, departure: Departure) -> bool:
    """Return whether all ranks must make this call in each iteration of a loop that some leave."""
    again = [loop for loop in step.loops if loop in departure.loops and repeats(loop)]
    return bool(again) and all_ranks_meet(step)


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
    nodes = list(ast.walk(around))
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.Assign) and node.value is work.step.node:
            target = node.targets[0]
            known = isinstance(target, ast.Name) and len(node.targets) == 1
            return known and ast.unparse(target) not in read
    return False
