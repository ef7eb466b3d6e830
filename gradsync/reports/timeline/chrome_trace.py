"""Write a run as a trace for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

The format is the Trace Event Format: complete events ("ph": "X") of a process and a thread, times
in microseconds. A rank is a process in the trace, with one thread for its computation and others
for its collectives, which may overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from gradsync.records import Event
from gradsync.reports.timeline import captions, lanes, spans
from gradsync.reports.timeline.lanes import Bar
from gradsync.reports.timeline.spans import Span

_COMPUTE, _COLLECTIVES = 0, 1  # thread ids; further rows of collectives get higher ones
_MICRO = 1e6


def render(events: Sequence[Event], world_size: int) -> str:
    """Return the trace of a run of `world_size` ranks as JSON."""
    bars, end = lanes.bars(events, world_size), spans.period(events)[1]
    shown = [
        row
        for rank in range(world_size)
        for row in _rank(events, rank, spans.in_rows([b for b in bars if b.rank == rank], end))
    ]
    return json.dumps({"traceEvents": shown, "displayTimeUnit": "ms"})


def _rank(
    events: Sequence[Event], rank: int, collectives: Sequence[tuple[Bar, Span, int]]
) -> Iterator[dict[str, Any]]:
    yield _name("process_name", rank, _COMPUTE, f"rank {rank}")
    yield _name("thread_name", rank, _COMPUTE, "main thread")
    for span in spans.computing(events, rank):
        yield _complete("compute", rank, _COMPUTE, span)
    for span in spans.blocked(events, rank):
        yield _complete("waits", rank, _COMPUTE, span)
    for row in sorted({row for _, _, row in collectives}):
        yield _name("thread_name", rank, _COLLECTIVES + row, "collectives")
    for bar, span, row in collectives:
        about = {"about": captions.tooltip(bar)}
        yield _complete(bar.name, rank, _COLLECTIVES + row, span, about)


def _complete(
    name: str, rank: int, thread: int, span: Span, about: dict[str, str] | None = None
) -> dict[str, Any]:
    start, end = span
    times = {"ts": round(start * _MICRO, 3), "dur": round((end - start) * _MICRO, 3)}
    return {"name": name, "ph": "X", "pid": rank, "tid": thread, **times, "args": about or {}}


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
