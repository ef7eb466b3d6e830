"""What a rank reports, read as hostile input: exact types and sane sizes, or no event at all."""

from __future__ import annotations

from typing import Any

from gradsync.ranks.wire import Frame, WireError
from gradsync.records import Collective, Event

KINDS = ("enter", "wait", "exit")
MAX_RANKS = 64
MAX_TEXT = 200  # characters of a name; longer ones are cut
MAX_SIDES = 64


def decode(frame: Frame, rank: int) -> Event:
    """Return the event that `rank` reported.

    Raises:
        WireError: a field is missing, or of another type than the recorder writes.
    """
    header = frame.header
    try:
        return Event(
            rank=rank,
            kind=frame.kind,  # type: ignore[arg-type]  # the caller dispatches on KINDS
            call=_integer(header["call"]),
            seconds=_number(header["seconds"]),
            thread=_integer(header["thread"]),
            others=_integer(header["others"]),
            collective=_collective(header["collective"]) if frame.kind == "enter" else None,
        )
    except (KeyError, TypeError) as problem:
        raise WireError(f"rank {rank} sent an event that is none ({problem})") from None


def _collective(fields: dict[str, Any]) -> Collective:
    members = tuple(_integer(member) for member in _items(fields["members"], MAX_RANKS))
    shapes = _items(fields["shapes"], 4096)
    return Collective(
        op=_text(fields["op"]),
        group=_text(fields["group"]),
        members=members,
        shapes=tuple(tuple(_integer(side) for side in _items(s, MAX_SIDES)) for s in shapes),
        dtype=_optional(_text, fields["dtype"]),
        reduce=_optional(_text, fields["reduce"]),
        root=_optional(_integer, fields["root"]),
        peer=_optional(_integer, fields["peer"]),
        tag=_integer(fields["tag"]),
        label=_optional(_text, fields["label"]),
        where=_optional(_text, fields["where"]),
    )


def _optional(read: Any, value: Any) -> Any:
    return None if value is None else read(value)


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise TypeError("an integer was wanted")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e9:
        raise TypeError("a number was wanted")
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a text was wanted")
    return value[:MAX_TEXT]


def _items(value: Any, limit: int) -> list[Any]:
    if type(value) is not list or len(value) > limit:
        raise TypeError("a list was wanted")
    return value
