"""Write the events of a rank, and read them as hostile input: types and sizes are checked.

An event is a row of numbers, with the collective if one is entered. A training loop enters the same
collectives thousands of times, so a collective is sent in full once and then by its number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

from gradsync.ranks.protocol.wire import Frame, WireError
from gradsync.records import Collective, Event, EventKind

KINDS = get_args(EventKind)
# A rank may complete these before all members have arrived, if it needs no data from them.
LOOSE_OPS = {"broadcast", "reduce", "gather", "scatter"}
NO_GRADIENTS = "without gradients: "  # how the label of such parameters of an FSDP unit begins
MAIN_THREAD = 0  # the number of a rank's main thread in its events
MAX_RANKS = 256
MAX_TEXT = 200  # characters of a name; longer ones are cut
MAX_SIDES = 64
MAX_TENSORS = 4096
MAX_CALLERS = 8  # at most so many of the user's functions are named: the innermost ones
MAX_BATCH = 4096  # events in one frame
SHAPE_ITEMS = 5  # numbers that take as much memory as an empty tuple
MAX_KNOWN = 2048  # collectives of a rank that are sent by number
MAX_KNOWN_WEIGHT = 12  # of each of these collectives: the numbers of all members weigh 8
FIELDS = (
    *("op", "group", "members", "shapes", "dtype", "reduce", "root", "peer", "tag"),
    *("sends", "receives", "ranks", "strides", "label", "via", "where", "callers", "by_test"),
    "after",
)


class Writer:
    """Writes the stream of a rank's events."""

    def __init__(self) -> None:
        self._numbers: dict[Collective, int] = {}

    def row(self, event: Event) -> list[Any]:
        """Return the next event as a row for a `Reader`."""
        plain = [event.kind, event.call, event.seconds, event.thread, event.others, event.touched]
        return [*plain, None if event.collective is None else self._shortened(event.collective)]

    def _shortened(self, collective: Collective) -> int | list[Any]:
        number = self._numbers.get(collective)
        if number is not None:
            return number
        kept = len(self._numbers) < MAX_KNOWN and _weight(collective) <= MAX_KNOWN_WEIGHT
        if kept:
            self._numbers[collective] = len(self._numbers)
        return [kept, *(getattr(collective, name) for name in FIELDS)]


class Reader:
    """Reads the stream of one rank's events, on the trusted side."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._known: list[Collective] = []

    def read(self, frame: Frame) -> list[Event]:
        """Return the events of the next frame.

        Raises:
            WireError: something is missing, or of the wrong type.
        """
        try:
            return [
                self._event(*_items(row, 7)) for row in _items(frame.header["events"], MAX_BATCH)
            ]
        except (KeyError, TypeError) as problem:
            raise WireError(f"it sent an invalid event ({problem})") from None

    def _event(
        self, kind: Any, call: Any, seconds: Any, thread: Any, others: Any, touched: Any, sent: Any
    ) -> Event:
        if kind not in KINDS:
            raise TypeError("unknown kind")
        return Event(
            rank=self._rank,
            kind=kind,
            call=_integer(call),
            seconds=_number(seconds),
            thread=_integer(thread),
            others=_integer(others),
            collective=self._collective(sent) if kind == "enter" else None,
            touched=touched is True,
        )

    def _collective(self, sent: Any) -> Collective:
        if type(sent) is int:
            if not 0 <= sent < len(self._known):
                raise TypeError("no collective has this number")
            return self._known[sent]
        fields = _items(sent, 1 + len(FIELDS))
        collective = _collective(*fields[1:])
        if fields[0] is True:  # it has a number from now on
            if len(self._known) >= MAX_KNOWN or _weight(collective) > MAX_KNOWN_WEIGHT:
                raise TypeError("the event is too large")
            self._known.append(collective)
        return collective


def text(value: Any, limit: int = MAX_TEXT) -> str:
    """Return a text from a rank, cut to `limit`, as valid Unicode."""
    if type(value) is not str:
        raise TypeError("expected a string")
    return value[:limit].encode(errors="replace").decode()  # removes lone surrogates


def weight(event: Event) -> int:
    """Return how much memory an event takes: 1 is a usual event of about a kilobyte."""
    return 1 if event.collective is None else _weight(event.collective)


def light(event: Event) -> Event:
    """Return the event with all its shapes replaced by one shape with the same total size."""
    if event.collective is None:
        return event
    elements = sum(map(math.prod, event.collective.shapes))
    return replace(event, collective=replace(event.collective, shapes=((elements,),)))


def last(events: Sequence[Event], most: int) -> tuple[Event, ...]:
    """Return the last events, with a total weight of at most `most`."""
    held = 0
    for count, event in enumerate(reversed(events)):
        held += weight(event)
        if held > most:
            return tuple(events[len(events) - count :])
    return tuple(events)


def _weight(call: Collective) -> int:
    names = (call.op, call.group, call.dtype, call.reduce, call.label, call.via)
    texts = (*names, call.where, call.after, *call.callers)
    letters = sum(len(text) for text in texts if text is not None)
    sides = sum(len(shape) + SHAPE_ITEMS for shape in (*call.shapes, *call.strides))
    numbers = sum(map(len, (call.members, call.sends, call.receives, call.ranks)))
    return 1 + (numbers + sides + letters // 8) // 32


def _collective(
    op: Any, group: Any, members: Any, shapes: Any, dtype: Any, reduce: Any, root: Any, peer: Any,
    tag: Any, sends: Any, receives: Any, ranks: Any, strides: Any, label: Any, via: Any, where: Any,
    callers: Any, by_test: Any, after: Any,
) -> Collective:  # fmt: skip
    return Collective(
        op=text(op),
        group=text(group),
        members=_integers(members, MAX_RANKS),
        shapes=tuple(_integers(s, MAX_SIDES) for s in _items(shapes, MAX_TENSORS)),
        dtype=_optional(text, dtype),
        reduce=_optional(text, reduce),
        root=_optional(_integer, root),
        peer=_optional(_integer, peer),
        tag=_integer(tag),
        sends=_integers(sends, MAX_RANKS),
        receives=_integers(receives, MAX_RANKS),
        ranks=_integers(ranks, 2 * MAX_RANKS),
        strides=tuple(_integers(s, MAX_SIDES) for s in _items(strides, MAX_TENSORS)),
        label=_optional(text, label),
        via=_optional(text, via),
        where=_optional(text, where),
        callers=tuple(text(name) for name in _items(callers, MAX_CALLERS)),
        by_test=by_test is True,
        after=_optional(text, after),
    )


def _optional(read: Any, value: Any) -> Any:
    return None if value is None else read(value)


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**64:
        raise TypeError("expected an integer")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e9:
        raise TypeError("expected a number")
    return float(value)


def _integers(value: Any, limit: int) -> tuple[int, ...]:
    return tuple(_integer(item) for item in _items(value, limit))


def _items(value: Any, limit: int) -> list[Any]:
    if type(value) is not list or len(value) > limit:
        raise TypeError("expected a list")
    return value
