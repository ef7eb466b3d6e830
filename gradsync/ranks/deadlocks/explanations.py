"""Describe deadlocks and mismatched collectives to a learner: each function returns a `Failure`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, product

from gradsync.ranks.deadlocks.calls import (
    SETUP,
    Call,
    Operation,
    disagreement,
    misfit,
    numel,
    portion,
)
from gradsync.ranks.deadlocks.detector import ENDS_GROUPS, DeadlockDetector, Stuck
from gradsync.ranks.protocol.events import NO_GRADIENTS
from gradsync.records import Collective, Diagnosis, Failure
from gradsync.text import counted, full_stop, listed, ranks_text, verb

GUIDE = "Deadlocks"
SINGLE = 8  # in a run with so many ranks, each has its own line in the graph
SHOWN = 8  # tensors of a call whose shapes are shown; a bucket may have hundreds
# A rule that finds the cause replaces this general advice: see `without_advice`.
ADVICE = "Every rank must make this call. Look for a branch or an early return before it."
LOOP_ADVICE = (
    "Every rank must make this call equally often. Does a rank skip an iteration, or has a loop "
    "around the call more of them on some ranks?"
)
FOUNDERS = "All ranks must call new_group, including those that are not in the group."
UNTIL = f"{ENDS_GROUPS} returns only when all collectives that the rank has started are complete."
# The kind of difference between the calls -> the code, what happened, and what was expected.
MISMATCHES = {
    "ops": (
        "deadlock-order-differs",
        "The ranks call different collectives at the same point.",
        "All ranks must call the same collectives in the same order.",
    ),
    "modules": (
        "deadlock-order-differs",
        "The ranks run different modules at the same point.",
        "All ranks must run the same modules in the same order.",
    ),
    "lists": (
        "deadlock-order-differs",
        "The ranks pass different lists to {name}.",
        "All ranks must create the same groups in the same order, also groups without them.",
    ),
    "roots": (
        "wrong-source",
        "The ranks pass different values of `{root}` to {name}.",
        "All ranks must pass the same value.",
    ),
    "reductions": (
        "shape-mismatch",
        "The ranks pass different reduce operations to {name}.",
        "All ranks must pass the same operation.",
    ),
    "lines": (
        "shape-mismatch",
        "The ranks call {name} from different places, with tensors that do not match.",
        "All ranks must make the same calls in the same order, with equal sizes and dtypes.",
    ),
    "shapes": (
        "shape-mismatch",
        "The ranks call {name} with tensors that do not match.",
        "All ranks must pass tensors with the same number of elements, in the same order.",
    ),
    "dtypes": (
        "shape-mismatch",
        "The ranks call {name} with tensors of different dtypes.",
        "The tensors must have the same dtype and the same number of elements on all ranks.",
    ),
    "messages": (
        "shape-mismatch",
        "A message does not fit into the tensor that receives it.",
        "The receiving tensor must have the dtype of the message, and at least its size.",
    ),
}


BACKWARD = "backward"  # the method of a `torch.autograd.Function`
PASSED = ("roots", "reductions", "lists")  # the calls themselves are the same


def explain(detector: DeadlockDetector, stuck: Stuck) -> Failure:
    """Explain why these ranks cannot continue."""
    conflicts = detector.conflicts()
    return mismatch(conflicts[0]) if conflicts else deadlock(detector, stuck)


def deadlock(detector: DeadlockDetector, stuck: Stuck) -> Failure:
    """Return the failure of ranks that wait for ranks which can never arrive."""
    ending = [call for calls in stuck.values() for call in calls if call.pending]
    first = _first(detector, stuck)
    if late := [call for call in first.pending if detector.missing(call)]:
        first = late[0]
    missing = detector.missing(first)
    over = missing & detector.gone
    beside = {
        rank: call
        for rank, calls in stuck.items()
        for call in calls
        if call.operation is first.operation
    }
    elsewhere = {
        rank: calls[0]
        for rank, calls in stuck.items()
        if rank not in beside and calls[0] not in ending
    }
    if over:
        idle = over & detector.idle
        left = [detector.left[rank] for rank in sorted(over & detector.left.keys())]
        parts = _absences(first, over - idle, idle, left)
        named = _is_message(first) or first.sets_key
        parts += _waiting(beside.values(), call_text(first) if named else "it")
    elif first.from_anyone:  # each rank is alone in its operation
        parts, elsewhere = waits_texts([*beside.values(), *elsewhere.values()]), {}
    else:
        parts = _waiting(beside.values(), call_text(first))
    if ending:
        parts += [*_waiting(ending, ENDS_GROUPS), UNTIL]
    parts += waits_texts(elsewhere.values())
    if over - detector.idle and not _is_message(first) and not first.collective.by_test:
        parts += _forgotten_group(detector, stuck) or _advice(detector, first, over)
    parts[:0] = _after_exceptions(call for calls in stuck.values() for call in calls)
    parts += _different_tags(call for calls in stuck.values() for call in calls)
    if not over:
        parts += _different_groups(stuck)
        parts += [FOUNDERS] * (first.collective.op == "new_group")
        parts.append(verb(stuck, "It cannot continue.", "None of these ranks can continue."))
    code = "deadlock-rank-missing" if over else "deadlock-order-differs"
    if first.collective.op == "init_process_group":
        code = "group-not-initialised"
    culprits = over or (missing if first.mail is None else stuck.keys())
    where = _line([first, *(call for calls in stuck.values() for call in calls)])
    return Failure(
        "deadlock",
        Diagnosis(code, tuple(sorted(culprits)), " ".join(parts), where, GUIDE),
        collective=first.collective,
        waiting=tuple(sorted(beside)),
    )


def wait_graph(detector: DeadlockDetector, world_size: int) -> tuple[str, ...]:
    """Return, for each rank, the ranks it waits for, the call and the line.

    "rank 0 -> rank 1: all_reduce #2 (bias.grad) at train.py:91". Of many ranks, those that do the
    same share a line.
    """
    waits = detector.waits()
    alike: dict[object, list[int]] = {}
    for rank in range(world_size):
        call = waits.get(rank)
        place = call and (call.operation.position, call_text(call), call.collective.where)
        state = (place, detector.missing(call)) if call else rank in detector.gone
        alike.setdefault(str(state) if world_size > SINGLE else rank, []).append(rank)
    return tuple(_edge(ranks, waits.get(ranks[0]), detector) for ranks in alike.values())


def without_advice(explanation: str) -> str:
    """Return a deadlock's explanation without the general advice, for a rule with better advice."""
    return explanation.replace(f" {ADVICE}", "").replace(f" {LOOP_ADVICE}", "")


def mismatch(operation: Operation) -> Failure:
    """Return the failure of ranks that arrive at the same point with calls that do not match."""
    calls = [operation.calls[rank] for rank in sorted(operation.calls)]
    kind = disagreement([call.collective for call in calls])
    if kind is None and (pair := _unequal(calls)):
        return _misfit(*pair, operation)
    kind = kind or ("lists" if operation.conflict == "lists" else "ops")
    if kind == "shapes" and len({call.collective.dtype for call in calls}) > 1:
        kind = "dtypes"
    places = {(call.collective.where, call.collective.callers) for call in calls}
    if kind in ("shapes", "dtypes") and len(places) > 1 and not calls[0].mail:
        kind = "modules" if all(call.collective.via for call in calls) else "lines"
    views: dict[str, list[int]] = {}
    for call in calls:
        views.setdefault(_view(kind, call), []).append(call.rank)
    odd = min(views.values(), key=lambda ranks: (len(ranks), -min(ranks)))
    first = operation.calls[odd[0]]
    code, happened, expected = MISMATCHES["messages" if first.mail else kind]
    if kind in ("shapes", "dtypes") and len({call.collective.label for call in calls}) > 1:
        code = "deadlock-order-differs"  # the ranks pass different tensors of the model
    culprits = odd if first.mail is None else list(operation.calls)
    verbs = ("passes", "pass") if kind in PASSED else ("calls", "call")
    seen = [
        f"{ranks_text(ranks).capitalize()} {verb(ranks, *verbs)} {view}."
        for view, ranks in views.items()
    ]
    op = first.collective.op
    name = numbered_text(first)
    root = "dst" if op.startswith(("reduce", "gather")) else "src"
    happened = happened.format(name=name, root=root)
    text = " ".join([*_after_exceptions(calls), happened, *seen, expected])
    text += _cause(operation, kind)
    return _mismatched(operation, code, culprits, text, [first, *calls])


def _cause(operation: Operation, kind: str) -> str:
    """Return a space and a sentence on the probable cause of a conflict, or ""."""
    calls = operation.calls.values()
    if any((call.collective.label or "").startswith(NO_GRADIENTS) for call in calls):
        return " FSDP reduces the gradients that exist: each rank must use the same parameters."
    if operation.threaded:
        who = ranks_text(operation.threaded).capitalize()
        return (
            f" {who} {verb(operation.threaded, 'uses', 'use')} this process group in a second "
            "thread, so the order of the calls is a race: give each thread a group of its own."
        )
    if kind == "roots" and all(_own_group(operation.subgroups, calls, call) for call in calls):
        return " Each of these ranks has a group with its own source: is `group=` missing?"
    if kind == "ops" and (alike := _group_of_one_op(operation)):
        who = ranks_text(alike).capitalize()
        return f" {who} have a group of their own: is `group=` missing?"
    return ""


def _group_of_one_op(operation: Operation) -> tuple[int, ...] | None:
    """Return a group whose ranks, and no others, call the same collective."""
    alike: dict[str, list[int]] = {}
    for rank, call in sorted(operation.calls.items()):
        alike.setdefault(call.collective.op, []).append(rank)
    groups = {tuple(sorted(group)) for group in operation.subgroups if len(group) > 1}
    found = [ranks for ranks in map(tuple, alike.values()) if ranks in groups]
    return found[0] if len(found) == 1 else None


def _own_group(
    subgroups: Iterable[tuple[int, ...]], calls: Iterable[Call], call: Call
) -> tuple[int, ...] | None:
    """Return a group with all ranks that pass the same root as this call, and with that root."""
    root = call.collective.root
    alike = {other.rank for other in calls if other.collective.root == root}
    needed = alike | ({root} if root is not None else set())
    everyone = set(call.collective.members)
    return next((g for g in subgroups if needed <= set(g) and set(g) < everyone), None)


def _advice(detector: DeadlockDetector, call: Call, returned: set[int]) -> list[str]:
    """Return sentences on the probable cause why ranks returned without making a call."""
    if call.sets_key:
        return []
    here = call.collective
    if here.op == "new_group":
        return [FOUNDERS]
    counts: dict[int, list[int]] = {}
    for rank in sorted(call.expected):
        counts.setdefault(detector.calls_at(rank, here), []).append(rank)
    often = {rank for rank in returned if 0 < detector.calls_at(rank, here) < max(counts)}
    if here.where and often and not here.label:  # a label shows which call is missing
        times = [
            f"{ranks_text(ranks)} called it {counted(count, 'time')}"
            for count, ranks in sorted(counts.items())
        ]
        return [f"At {here.where}, {listed(times)}.", LOOP_ADVICE]
    waiting = set(call.operation.calls)
    instead = [c for rank in returned if (c := detector.in_subgroup.get((rank, here.op)))]
    outside = not any((rank, here.op) in detector.in_subgroup for rank in waiting)
    if len(instead) == len(returned) and outside:
        at = f", at {line_text(instead[0])}" if instead[0].where else ""
        return [
            f"{ranks_text(returned).capitalize()} called {here.op} in a group without "
            f"{ranks_text(waiting)}{at}: is `group=` missing?"
        ]
    groups = detector.subgroups if here.root is not None else ()
    if any(waiting <= set(group) and not returned & set(group) for group in groups):
        return [f"{ADVICE} These ranks have a group of their own: is `group=` missing?"]
    return [ADVICE]


def _after_exceptions(calls: Iterable[Call]) -> list[str]:
    """Return sentences on ranks that wait in a `finally`, which hides their exception."""
    together: dict[tuple[str, str], list[int]] = {}
    for call in calls:
        if call.collective.after:
            called = f"{numbered_text(call)}{_at(call)}"
            together.setdefault((call.collective.after, called), []).append(call.rank)
    return [
        f"{ranks_text(ranks).capitalize()} raised {full_stop(after)} It is not printed, because a "
        f"`finally` or `except` block then called {called}. Fix the exception, and call no "
        "collective after one."
        for (after, called), ranks in together.items()
    ]


def _forgotten_group(detector: DeadlockDetector, stuck: Stuck) -> list[str]:
    """Return a sentence if a rank makes a call of others' smaller group in a larger group."""
    calls = [calls[0] for calls in stuck.values() if calls[0].mail is None]
    for small, large in product(calls, calls):
        one, other = small.collective, large.collective
        inside = set(one.members) < set(other.members) and large.rank in detector.missing(small)
        if inside and one.op == other.op and one.op not in SETUP:
            return [
                f"Rank {small.rank} calls {one.op} in a group of {len(one.members)} ranks, but "
                f"rank {large.rank} in a group of {len(other.members)}: is `group=` missing?"
            ]
    return []


def _different_groups(stuck: Stuck) -> list[str]:
    """Return sentences if ranks wait in different groups, as when their order is not the same."""
    groups: dict[str, list[int]] = {}
    for rank, calls in stuck.items():
        if calls[0].mail is None and calls[0].collective.op not in SETUP:
            groups.setdefault(calls[0].collective.group, []).append(rank)
    if len(groups) < 2:
        return []
    places = [f"{ranks_text(ranks)} in group {name}" for name, ranks in groups.items()]
    return [
        f"They wait in different process groups: {listed(places)}.",
        "All ranks must use their groups in the same order.",
    ]


def _different_tags(calls: Iterable[Call]) -> list[str]:
    """Return a sentence if a message and a receive differ only in their tags."""
    messages = [(call, call.collective) for call in calls if _is_message(call)]
    for sender, sent in messages:
        for receiver, expected in messages:
            ends = (sent.op, expected.op, sent.peer, expected.peer)
            if ends == ("send", "recv", receiver.rank, sender.rank) and sent.tag != expected.tag:
                return [
                    f"The tags differ: rank {sender.rank} sends with tag {sent.tag}, rank "
                    f"{receiver.rank} receives with tag {expected.tag}."
                ]
    return []


def _unequal(calls: Sequence[Call]) -> tuple[Call, Call] | None:
    """Return a sender and a receiver whose sizes differ, the same pair on every run, or None."""
    alone = (misfit(call, [call]) for call in calls)
    between = (misfit(call, calls) for call in calls)
    return next(filter(None, chain(alone, between)), None)


def _misfit(sender: Call, receiver: Call, operation: Operation) -> Failure:
    """Return the failure of an all_to_all in which a rank expects a different size."""
    whom = f"rank {receiver.rank}" if receiver is not sender else "itself"
    who = f"rank {sender.rank}" if receiver is not sender else "itself"
    sent, expected = portion(sender, receiver.rank), portion(receiver, sender.rank, arriving=True)
    happened, expected_of_both = _misfit_cause(sender, receiver)
    text = (
        f"The ranks call {numbered_text(sender)} {happened}. Rank {sender.rank} "
        f"sends {sent} x {sender.collective.dtype} to {whom}{_at(sender)}. Rank {receiver.rank} "
        f"expects {expected} x {receiver.collective.dtype} from {who}{_at(receiver)}. "
        f"{expected_of_both}"
    )
    ranks = {sender.rank, receiver.rank}
    return _mismatched(operation, "shape-mismatch", ranks, text, [sender, receiver])


def _misfit_cause(sender: Call, receiver: Call) -> tuple[str, str]:
    """Return how two calls differ, and what must be true of both."""
    one, other = sender.collective, receiver.collective
    if (one.where, one.callers) == (other.where, other.callers):
        return (
            "with sizes that do not match",
            "The size that one rank sends must be the size that the other rank expects from it.",
        )
    text = "All ranks must make the same calls in the same order."
    forward = [call.rank for call in (sender, receiver) if BACKWARD not in call.collective.callers]
    if len(forward) == 1:
        text += (
            f" Rank {forward[0]} is not in the backward pass. There, autograd makes a call only if "
            "the loss depends on what the call in forward returned, even if that was empty."
        )
    return "from different places, with sizes that do not match", text


def _mismatched(
    operation: Operation, code: str, ranks: Iterable[int], text: str, calls: Sequence[Call]
) -> Failure:
    """Return a failure at the first of these calls that has a line."""
    return Failure(
        "deadlock",
        Diagnosis(code, tuple(sorted(ranks)), text, _line(calls), GUIDE),
        collective=calls[0].collective,
        waiting=tuple(sorted(operation.calls)),
    )


def waits_texts(calls: Iterable[Call]) -> list[str]:
    """Return "Ranks 0 and 1 are waiting in barrier #2, at trainer.py:91." for each place."""
    together: dict[str, list[Call]] = {}
    for call in calls:
        together.setdefault(call_text(call), []).append(call)
    return [text for name, calls in together.items() for text in _waiting(calls, name)]


def call_text(call: Call, more: str = "") -> str:
    """Return "all_reduce #7 (fc2.bias.grad, 10 x float32)"; `more` is added in the parentheses."""
    collective = call.collective
    size = f"{numel(collective)} x {collective.dtype}" if collective.dtype else None
    tag = f"tag {collective.tag}" if _is_message(call) and collective.tag else ""
    via = f"in {collective.via}" if collective.via else ""
    details = ", ".join(detail for detail in (via, collective.label, size, tag, more) if detail)
    peer = ""
    if _is_message(call):
        whom = "any rank" if collective.peer is None else f"rank {collective.peer}"
        peer = f" to {whom}" if collective.op == "send" else f" from {whom}"
    whose = "the test's own " if collective.by_test else ""
    return f"{whose}{numbered_text(call)}{peer}" + (f" ({details})" if details else "")


def numbered_text(call: Call) -> str:
    """Return "all_reduce #7", as its rank counts them."""
    op = call.collective.op
    return f"{op} #{call.number}" if call.number else f"the {op} of an earlier cell"


def line_text(collective: Collective) -> str:
    """Return "template_trainer.py:91 (train -> evaluate)": the line and its callers."""
    calls = f" ({' -> '.join(collective.callers)})" if len(collective.callers) > 1 else ""
    return f"{collective.where}{calls}"


def _is_message(call: Call) -> bool:
    return call.collective.op in ("send", "recv")


def _first(detector: DeadlockDetector, stuck: Stuck) -> Call:
    """Return the call with which an explanation begins: the same one on every run of a program.

    Calls that a returned rank is missing from come first: that rank cannot be waiting for anyone.
    Then come the calls in which most ranks wait.
    """
    calls = [call for rank in sorted(stuck) for call in stuck[rank]]

    def weight(call: Call) -> tuple[bool, int, bool, int]:
        together = sum(other.operation is call.operation for other in calls)
        returned = detector.missing(call) & detector.over
        return not returned, -together, call.mail is not None, call.operation.position

    return min(calls, key=weight)


def _line(calls: Iterable[Call]) -> str | None:
    """Return the first line in the user's files; calls that the test itself makes have none."""
    return next((call.collective.where for call in calls if call.collective.where), None)


def _absences(
    call: Call, returned: set[int], idle: set[int], left: Sequence[Call] = ()
) -> list[str]:
    """Return sentences such as "Ranks 1 and 2 returned without calling all_reduce #2.".

    One is about the ranks that returned, one about the ranks that do not run this cell, and one
    about those that have `left` the process group.
    """
    calling, calls, call_, what = "calling", "calls", "call", call_text(call)
    if call.collective.op == "recv":
        calling, calls, call_ = "sending", "sends", "send"
        what = f"the message that rank {call.rank} is waiting for"
    elif call.collective.op == "send":
        calling, calls, call_ = "receiving", "receives", "receive"
        what = f"the message that rank {call.rank} is sending"
    elif call.sets_key:
        calling, calls, call_ = "setting", "sets", "set"
        what = f"{call.collective.label} of the store"
    texts = []
    for end in left:
        called = f"called {ENDS_GROUPS}{_at(end)}"
        texts.append(f"Rank {end.rank} {called}{',' * bool(_at(end))} without {calling} {what}.")
    returned = returned - {end.rank for end in left}
    if returned:
        texts.append(f"{ranks_text(returned).capitalize()} returned without {calling} {what}.")
    if idle:
        do_not = verb(idle, "does not", "do not")
        never = verb(idle, f"it never {calls}", f"they never {call_}")
        who = ranks_text(idle).capitalize()
        texts.append(f"{who} {do_not} run this cell, so {never} {what}.")
    return texts


def _waiting(calls: Iterable[Call], where: str) -> list[str]:
    """Return a sentence for each line at which ranks wait in `where`."""
    lines: dict[str | None, set[int]] = {}
    for call in calls:
        known = line_text(call.collective) if call.collective.where else None
        lines.setdefault(known, set()).add(call.rank)
    return [
        f"{ranks_text(ranks).capitalize()} {verb(ranks, 'is', 'are')} waiting in {where}"
        + (f", at {line}." if line else ".")
        for line, ranks in lines.items()
    ]


def _at(call: Call) -> str:
    return f", at {line_text(call.collective)}" if call.collective.where else ""


def _view(kind: str, call: Call) -> str:
    """Return what a rank calls or passes, and at which line."""
    collective = call.collective
    at = _at(call)
    if kind == "roots":
        return f"{collective.root}{at}"
    if kind == "lists":
        return f"{_lists_text(collective.ranks)}{at}"
    if kind == "reductions":
        return f"{collective.reduce}{at}"
    if kind not in ("shapes", "dtypes", "lines"):
        return f"{call_text(call)}{at}"
    shapes = [str(list(shape)) for shape in collective.shapes[:SHOWN]]
    if len(collective.shapes) > SHOWN:
        shapes.append(f"{len(collective.shapes) - SHOWN} more")
    return f"{call_text(call, 'shape ' + ' + '.join(shapes))}{at}"


def _lists_text(ranks: Sequence[int]) -> str:
    """Return "[0, 3]" for new_group, or "[[0, 1], [2, 3]]" for split_group: -1 ends a list."""
    if -1 not in ranks:
        return str(list(ranks))
    parts = " ".join(map(str, ranks)).split("-1")[:-1]
    return str([[int(rank) for rank in part.split()] for part in parts])


def _edge(ranks: Sequence[int], call: Call | None, detector: DeadlockDetector) -> str:
    who = ranks_text(ranks)
    if ranks[0] in detector.gone:
        return f"{who} {verb(ranks, 'has', 'have')} returned"
    if call is None:
        return f"{who} {verb(ranks, 'is', 'are')} running"
    collective = call.collective
    label = f" ({collective.label})" if collective.label else ""
    where = f" at {collective.where}" if collective.where else ""
    others = ranks_text(detector.missing(call) or set(call.operation.calls).difference(ranks))
    return f"{who} -> {others}: {numbered_text(call)}{label}{where}"
