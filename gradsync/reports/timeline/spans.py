"""Find when a rank's main thread computed, and when it waited for a collective. In seconds."""

from __future__ import annotations

from collections.abc import Sequence

from gradsync.records import Event
from gradsync.reports.timeline import scale
from gradsync.reports.timeline.lanes import Bar

Span = tuple[float, float]


def period(events: Sequence[Event]) -> Span:
    """Return the times of the first and the last event of all ranks."""
    times = [event.seconds for event in events]
    return (min(times), max(times)) if times else (0.0, 0.0)


def blocked(events: Sequence[Event], rank: int) -> list[Span]:
    """Return when a rank's main thread waited for a collective, in order and without overlaps."""
    return joined([span for _, span in waits(events, rank)])


def waits(events: Sequence[Event], rank: int) -> list[tuple[int, Span]]:
    """Return the waits of a rank's main thread, each with the number of the call.

    A wait lasts until the collective is complete, or to the end of the period if it never is.
    """
    own = [event for event in events if event.rank == rank]
    if not own:
        return []
    end = period(events)[1]
    exits = {event.call: event.seconds for event in own if event.kind == "exit"}
    begun = [e for e in own if e.kind == "wait" and e.thread == own[0].thread]
    return [(e.call, (e.seconds, max(e.seconds, exits.get(e.call, end)))) for e in begun]


def computing(events: Sequence[Event], rank: int) -> list[Span]:
    """Return when a rank was not blocked, between its first and its last event."""
    times = [event.seconds for event in events if event.rank == rank]
    if not times:
        return []
    edges = [min(times)]
    for start, end in blocked(events, rank):
        edges += [start, end]
    edges.append(max(times))
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def in_rows(bars: Sequence[Bar], end: float) -> list[tuple[Bar, Span, int]]:
    """Return a rank's collectives, each with its span and a row in which it overlaps no other.

    A collective that never completed lasts until `end`.
    """
    places = [(bar.start, end if bar.end is None else bar.end) for bar in bars]
    return list(zip(bars, places, scale.rows(places), strict=True))


def waiting(events: Sequence[Event], world_size: int) -> str:
    """Return a line on how much of its time each rank waited."""
    shares = []
    for rank in range(world_size):
        still = sum(end - start for start, end in blocked(events, rank))
        busy = sum(end - start for start, end in computing(events, rank))
        shares.append(f"rank {rank} {still / max(still + busy, 1e-9):.0%}")
    return f"Time spent waiting: {', '.join(shares)}"


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return the same times as spans in order that do not overlap."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found
