"""A run as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format: complete events ("ph": "X") of a process and a thread, times
in microseconds. A rank is a process here, with a thread for what it computes and others for its
collectives, which may overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gradsync.records import Event
from gradsync.reports import captions, lanes, scale, spans

_COMPUTE, _COLLECTIVES = 0, 1  # threads; each row of collectives that overlap is one more
_MICRO = 1e6


def render(events: Sequence[Event], world_size: int) -> str:
    """The trace of a run of `world_size` ranks, as JSON."""
    shown = [row for rank in range(world_size) for row in _rank(events, rank, world_size)]
    return json.dumps({"traceEvents": shown, "displayTimeUnit": "ms"})


def _rank(events: Sequence[Event], rank: int, world_size: int) -> Iterator[dict[str, Any]]:
    end = spans.period(events)[1]
    yield _name("process_name", rank, _COMPUTE, f"rank {rank}")
    yield _name("thread_name", rank, _COMPUTE, "main thread")
    for span in spans.computing(events, rank):
        yield _complete("compute", rank, _COMPUTE, span)
    for span in spans.blocked(events, rank):
        yield _complete("waits", rank, _COMPUTE, span)
    mine = [bar for bar in lanes.bars(events, world_size) if bar.rank == rank]
    places = [(bar.start, end if bar.end is None else bar.end) for bar in mine]
    rows = scale.rows(places)
    for row in sorted(set(rows)):
        yield _name("thread_name", rank, _COLLECTIVES + row, "collectives")
    for bar, span, row in zip(mine, places, rows, strict=True):
        about = {"about": captions.tooltip(bar)}
        yield _complete(bar.name, rank, _COLLECTIVES + row, span, about)


def _complete(
    name: str, rank: int, thread: int, span: spans.Span, about: dict[str, str] | None = None
) -> dict[str, Any]:
    start, end = span
    times = {"ts": round(start * _MICRO, 3), "dur": round((end - start) * _MICRO, 3)}
    return {"name": name, "ph": "X", "pid": rank, "tid": thread, **times, "args": about or {}}


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
