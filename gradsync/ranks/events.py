"""What a rank reports, written by it and read as hostile input: exact types and sane sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradsync.ranks.wire import Frame, WireError
from gradsync.records import Collective, Event

KINDS = ("enter", "wait", "exit")
MAX_RANKS = 64
MAX_TEXT = 200  # characters of a name; longer ones are cut
MAX_SIDES = 64
MAX_TENSORS = 4096
MAX_BATCH = 4096  # events in one frame
SHAPE_ITEMS = 5  # numbers that take as much memory as a tuple does, beside its own
FIELDS = (
    *("op", "group", "members", "shapes", "dtype", "reduce", "root", "peer", "tag"),
    *("label", "where"),
)


def encode(event: Event) -> dict[str, Any]:
    """Return an event as `decode` reads it."""
    row: dict[str, Any] = {
        "kind": event.kind,
        "call": event.call,
        "seconds": event.seconds,
        "thread": event.thread,
        "others": event.others,
        "touched": event.touched,
    }
    if event.collective is not None:
        row["collective"] = {name: getattr(event.collective, name) for name in FIELDS}
    return row


def decode(frame: Frame, rank: int) -> list[Event]:
    """Return the events that `rank` reported.

    Raises:
        WireError: a field is missing, or of another type than `encode` writes.
    """
    try:
        return [_event(row, rank) for row in _items(frame.header["events"], MAX_BATCH)]
    except (KeyError, TypeError) as problem:
        raise WireError(f"rank {rank} sent an event that is none ({problem})") from None


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """Return a text that came from a rank, cut to `limit` and fit to be written anywhere."""
    if type(value) is not str:
        raise TypeError("a text was wanted")
    return value[:limit].encode(errors="replace").decode()  # no half of a surrogate pair


def weight(event: Event) -> int:
    """Return how much memory an event takes: 1 for what honest ranks report, of a kilobyte."""
    call = event.collective
    if call is None:
        return 1
    texts = (call.op, call.group, call.dtype, call.reduce, call.label, call.where)
    letters = sum(len(text) for text in texts if text is not None)
    sides = sum(len(shape) + SHAPE_ITEMS for shape in call.shapes)
    return 1 + (len(call.members) + sides + letters // 8) // 32


def light(event: Event) -> Event:
    """Return the event without its tensors' shapes: as if all were one, of as many elements."""
    if event.collective is None:
        return event
    elements = sum(map(math.prod, event.collective.shapes))
    return replace(event, collective=replace(event.collective, shapes=((elements,),)))


def last(events: Sequence[Event], most: int) -> tuple[Event, ...]:
    """Return the last of the events, of the weight `most` together at the most."""
    held = 0
    for count, event in enumerate(reversed(events)):
        held += weight(event)
        if held > most:
            return tuple(events[len(events) - count :])
    return tuple(events)


def _event(row: Any, rank: int) -> Event:
    kind = row["kind"]
    if kind not in KINDS:
        raise TypeError("no such kind")
    return Event(
        rank=rank,
        kind=kind,
        call=_integer(row["call"]),
        seconds=_number(row["seconds"]),
        thread=_integer(row["thread"]),
        others=_integer(row["others"]),
        collective=_collective(row["collective"]) if kind == "enter" else None,
        touched=row["touched"] is True,
    )


def _collective(fields: Any) -> Collective:
    return Collective(
        op=text(fields["op"]),
        group=text(fields["group"]),
        members=_integers(fields["members"], MAX_RANKS),
        shapes=tuple(_integers(s, MAX_SIDES) for s in _items(fields["shapes"], MAX_TENSORS)),
        dtype=_optional(text, fields["dtype"]),
        reduce=_optional(text, fields["reduce"]),
        root=_optional(_integer, fields["root"]),
        peer=_optional(_integer, fields["peer"]),
        tag=_integer(fields["tag"]),
        label=_optional(text, fields["label"]),
        where=_optional(text, fields["where"]),
    )


def _optional(read: Any, value: Any) -> Any:
    return None if value is None else read(value)


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**64:
        raise TypeError("an integer was wanted")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e9:
        raise TypeError("a number was wanted")
    return float(value)


def _integers(value: Any, limit: int) -> tuple[int, ...]:
    return tuple(_integer(item) for item in _items(value, limit))


def _items(value: Any, limit: int) -> list[Any]:
    if type(value) is not list or len(value) > limit:
        raise TypeError("a list was wanted")
    return value
