"""What went wrong between ranks, in a learner's words: each function returns a `Failure`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from gradsync.records import Collective, Diagnosis, Failure

GUIDE = "Deadlocks"
NOUNS = {"float32": "float", "float64": "double"}


def numel(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def ranks_text(ranks: Collection[int]) -> str:
    """Return "rank 1" or "ranks 0, 2, 3"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, sorted(ranks)))}"


def call_text(collective: Collective, index: int | None = None) -> str:
    """Return "all_reduce #7 (fc2.bias.grad, 10 floats)"."""
    count = sum(numel(shape) for shape in collective.shapes)
    noun = NOUNS.get(collective.dtype or "", f"{collective.dtype} value")
    size = f"{count} {noun}{'s' * (count != 1)}" if collective.dtype else None
    details = ", ".join(d for d in (collective.label, size) if d)
    peer = ""
    if collective.op in ("send", "recv"):
        direction = "to" if collective.op == "send" else "from"
        peer = f" {direction} " + (
            "any rank" if collective.peer is None else f"rank {collective.peer}"
        )
    number = f" #{index}" if index else ""
    return f"{collective.op}{number}{peer}" + (f" ({details})" if details else "")


def _since(collective: Collective) -> str:
    return f" at {collective.where}" if collective.where else ""


def deadlock(
    waiting: Mapping[int, Collective],
    index: int,
    missing: Collection[int],
    elsewhere: Mapping[int, Collective],
    over: Collection[int],
) -> Failure:
    """Some ranks wait in a collective that the missing ones can never enter."""
    first = waiting[min(waiting)]
    call = call_text(first, index)
    parts = []
    if over:
        have = "it has" if len(over) == 1 else "they have"
        parts.append(f"{ranks_text(over)} never entered {call}: {have} already returned")
    wait = "waits" if len(waiting) == 1 else "wait"
    parts.append(f"{ranks_text(waiting)} {wait} in {call}{_since(first)}")
    parts += [
        f"rank {rank} waits in {call_text(other)}{_since(other)}"
        for rank, other in sorted(elsewhere.items())
    ]
    code = "deadlock-order-differs" if elsewhere else "deadlock-rank-missing"
    if first.op == "init_process_group":
        code = "group-not-initialised"
    diagnosis = Diagnosis(
        code, tuple(sorted(missing or waiting)), "; ".join(parts), first.where, GUIDE
    )
    return Failure("deadlock", diagnosis, collective=first, waiting=tuple(sorted(waiting)))


def mismatch(kind: str, entered: Mapping[int, Collective], index: int) -> Failure:
    """Ranks meet in the same place with calls that do not fit each other."""
    views: dict[str, list[int]] = {}
    for rank, collective in entered.items():
        views.setdefault(_view(kind, collective, index), []).append(rank)
    told = "; ".join(f"{ranks_text(ranks)}: {view}" for view, ranks in views.items())
    odd = min(views.values(), key=lambda ranks: (len(ranks), -min(ranks)))
    first = entered[odd[0]]
    labels = {collective.label for collective in entered.values()}
    codes = {
        "ops": "deadlock-order-differs",
        "roots": "wrong-source",
        "reductions": "shape-mismatch",
        "shapes": "shape-mismatch",
    }
    code = codes[kind]
    if kind == "shapes" and None not in labels and len(labels) > 1:
        code = "deadlock-order-differs"
    lead = {
        "ops": "the ranks call different collectives at the same point",
        "roots": f"the ranks disagree on the source of {first.op} #{index}",
        "reductions": f"the ranks disagree on the reduction of {first.op} #{index}",
        "shapes": f"the ranks meet in {first.op} #{index} with tensors that do not fit",
    }[kind]
    diagnosis = Diagnosis(code, tuple(sorted(odd)), f"{lead}. {told}", first.where, GUIDE)
    return Failure("deadlock", diagnosis, collective=first, waiting=tuple(sorted(entered)))


def _view(kind: str, collective: Collective, index: int) -> str:
    if kind == "roots":
        return f"root {collective.root}{_since(collective)}"
    if kind == "reductions":
        return f"{collective.reduce}{_since(collective)}"
    shapes = " + ".join(str(list(shape)) for shape in collective.shapes)
    view = f"{call_text(collective, index)}{_since(collective)}"
    return f"{view}, shape {shapes}" if kind == "shapes" else view
