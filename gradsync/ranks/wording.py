"""What went wrong between ranks, in a learner's words: each function returns a `Failure`."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gradsync.ranks.calls import Call, Meeting, disagreement
from gradsync.ranks.standoff import ENDS_GROUPS, Standoff, Stuck
from gradsync.records import Collective, Diagnosis, Failure
from gradsync.text import counted, ranks_text

GUIDE = "Deadlocks"
SHOWN = 8  # tensors of a call whose shapes are told; a bucket may have hundreds
NOUNS = {"float32": "float", "float64": "double"}
UNTIL = "it returns only when all collectives that the rank has started are complete"
# What a meeting's calls disagree in -> the code, and what is said first.
MISMATCHES = {
    "ops": ("deadlock-order-differs", "the ranks call different collectives at the same point"),
    "roots": ("wrong-source", "the ranks disagree on the source of {}"),
    "reductions": ("shape-mismatch", "the ranks disagree on the reduction of {}"),
    "shapes": ("shape-mismatch", "the ranks meet in {} with tensors that do not fit"),
    "dtypes": ("shape-mismatch", "the ranks meet in {} with tensors of different dtypes"),
}


def explain(standoff: Standoff, stuck: Stuck) -> Failure:
    """Tell why these ranks can't go on."""
    conflicts = standoff.conflicts()
    return mismatch(conflicts[0]) if conflicts else deadlock(standoff, stuck)


def deadlock(standoff: Standoff, stuck: Stuck) -> Failure:
    """Some ranks wait for others that can never come."""
    ending = [call for calls in stuck.values() for call in calls if call.pending]
    first = _first(standoff, stuck)
    if late := [call for call in first.pending if standoff.missing(call)]:
        first = late[0]
    missing = standoff.missing(first)
    over = missing & standoff.over
    beside = {
        rank: call
        for rank, calls in stuck.items()
        for call in calls
        if call.meeting is first.meeting
    }
    elsewhere = {
        rank: calls[0]
        for rank, calls in stuck.items()
        if rank not in beside and calls[0] not in ending
    }
    if over:
        idle = over & standoff.idle
        parts = [_absence(first, over - idle, idle), *_since(beside.values(), "there")]
    elif first.from_anyone:  # each rank is alone in its meeting
        parts, elsewhere = waits_texts([*beside.values(), *elsewhere.values()]), {}
    else:
        parts = _since(beside.values(), f"in {call_text(first)}")
    parts += [f"{text}: {UNTIL}" for text in _since(ending, f"in {ENDS_GROUPS}")]
    parts += [text for call in elsewhere.values() for text in waits_texts([call])]
    code = "deadlock-rank-missing" if over else "deadlock-order-differs"
    if first.collective.op == "init_process_group":
        code = "group-not-initialised"
    culprits = over or (missing if first.mail is None else stuck.keys())
    where = _line([first, *(call for calls in stuck.values() for call in calls)])
    return Failure(
        "deadlock",
        Diagnosis(code, tuple(sorted(culprits)), "; ".join(parts), where, GUIDE),
        collective=first.collective,
        waiting=tuple(sorted(beside)),
    )


def mismatch(meeting: Meeting) -> Failure:
    """Ranks meet in the same place with calls that do not fit each other."""
    calls = [meeting.calls[rank] for rank in sorted(meeting.calls)]
    kind = disagreement([call.collective for call in calls]) or "ops"
    if kind == "shapes" and len({call.collective.dtype for call in calls}) > 1:
        kind = "dtypes"
    views: dict[str, list[int]] = {}
    for call in calls:
        views.setdefault(_view(kind, call), []).append(call.rank)
    odd = min(views.values(), key=lambda ranks: (len(ranks), -min(ranks)))
    first = meeting.calls[odd[0]]
    code, lead = MISMATCHES[kind]
    if kind in ("shapes", "dtypes") and len({call.collective.label for call in calls}) > 1:
        code = "deadlock-order-differs"  # each means another tensor
    culprits = odd if first.mail is None else list(meeting.calls)
    told = "; ".join(f"{ranks_text(ranks)}: {view}" for view, ranks in views.items())
    name = _numbered(first)
    return Failure(
        "deadlock",
        Diagnosis(
            code,
            tuple(sorted(culprits)),
            f"{lead.format(name)}. {told}",
            _line([first, *calls]),
            GUIDE,
        ),
        collective=first.collective,
        waiting=tuple(sorted(meeting.calls)),
    )


def waits_texts(calls: Iterable[Call]) -> list[str]:
    """Return "ranks 0, 1 wait in barrier #2 since template_trainer.py:91", a text a place."""
    together: dict[str, list[Call]] = {}
    for call in calls:
        together.setdefault(call_text(call), []).append(call)
    return [text for name, calls in together.items() for text in _since(calls, f"in {name}")]


def call_text(call: Call) -> str:
    """Return "all_reduce #7 (fc2.bias.grad, 10 floats)"."""
    collective = call.collective
    count = sum(map(math.prod, collective.shapes))
    noun = NOUNS.get(collective.dtype or "", f"{collective.dtype} value")
    size = counted(count, noun) if collective.dtype else None
    details = ", ".join(detail for detail in (collective.label, size) if detail)
    peer = ""
    if collective.op in ("send", "recv"):
        whom = "any rank" if collective.peer is None else f"rank {collective.peer}"
        peer = f" to {whom}" if collective.op == "send" else f" from {whom}"
    whose = "the test's own " if collective.by_test else ""
    return f"{whose}{_numbered(call)}{peer}" + (f" ({details})" if details else "")


def _numbered(call: Call) -> str:
    """Return "all_reduce #7", as its rank counts them."""
    op = call.collective.op
    return f"{op} #{call.number}" if call.number else f"the {op} of an earlier cell"


def line_text(collective: Collective) -> str:
    """Return "template_trainer.py:91 (train -> evaluate)": the line, and which calls led there."""
    calls = f" ({' -> '.join(collective.callers)})" if len(collective.callers) > 1 else ""
    return f"{collective.where}{calls}"


def _first(standoff: Standoff, stuck: Stuck) -> Call:
    """Return the call to tell a deadlock from, the same on every run of the same program.

    A rank that returned can't be waiting for anyone: it comes first. Then what most ranks wait in.
    """
    calls = [call for rank in sorted(stuck) for call in stuck[rank]]

    def weight(call: Call) -> tuple[bool, int, bool, int]:
        together = sum(other.meeting is call.meeting for other in calls)
        returned = standoff.missing(call) & standoff.over
        return not returned, -together, call.mail is not None, call.meeting.position

    return min(calls, key=weight)


def _line(calls: Iterable[Call]) -> str | None:
    """Return the first line of the user's that is known: a test's own calls have none."""
    return next((call.collective.where for call in calls if call.collective.where), None)


def _absence(call: Call, returned: set[int], idle: set[int]) -> str:
    who = ranks_text(returned | idle)
    what = f"entered {call_text(call)}"
    if call.collective.op == "recv":
        what = f"sent what {call_text(call)} of rank {call.rank} wants"
    elif call.collective.op == "send":
        what = f"received {call_text(call)} of rank {call.rank}"
    have = "it has" if len(returned) == 1 else "they have"
    reasons = [f"{have} already returned"] if returned else []
    if idle:
        reasons.append(f"this cell does not run on {ranks_text(idle)}")
    return f"{who} never {what}: {', and '.join(reasons)}"


def _since(calls: Iterable[Call], where: str) -> list[str]:
    """Return who waits there, a text for each line that they wait at."""
    lines: dict[str | None, set[int]] = {}
    for call in calls:
        known = line_text(call.collective) if call.collective.where else None
        lines.setdefault(known, set()).add(call.rank)
    return [
        f"{ranks_text(ranks)} {'waits' if len(ranks) == 1 else 'wait'} {where}"
        + (f" since {line}" if line else "")
        for line, ranks in lines.items()
    ]


def _view(kind: str, call: Call) -> str:
    collective = call.collective
    at = f" at {line_text(collective)}" if collective.where else ""
    if kind == "roots":
        return f"root {collective.root}{at}"
    if kind == "reductions":
        return f"{collective.reduce}{at}"
    if kind not in ("shapes", "dtypes"):
        return f"{call_text(call)}{at}"
    shapes = [str(list(shape)) for shape in collective.shapes[:SHOWN]]
    if len(collective.shapes) > SHOWN:
        shapes.append(f"{len(collective.shapes) - SHOWN} more")
    dtype = f", {collective.dtype}" if kind == "dtypes" else ""
    return f"{call_text(call)}{at}, shape {' + '.join(shapes)}{dtype}"
