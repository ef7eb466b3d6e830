"""Draw compute and collectives of a run, rank by rank, on a linear time axis, as an SVG.

Items above each other happened at the same time. If a collective is drawn below compute, its cost
is hidden; if the main thread waits, it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, tostring

from gradsync.records import Event
from gradsync.reports.timeline import captions, lanes, spans, svg
from gradsync.reports.timeline.lanes import Bar
from gradsync.reports.timeline.palette import rank_colour
from gradsync.reports.timeline.spans import Span

_WIDTH, _GUTTER, _MARGIN = 1100.0, 62.0, 12.0
_MAIN, _ROW, _LANE_GAP = 20.0, 17.0, 12.0
_TOP, _AXIS, _LEGEND = 8.0, 22.0, 22.0
_STEPS = 20.0  # height of the line with the steps' names
_THINNEST = 0.6  # minimum width
_STYLE = """
.gs-timeline .compute{fill:var(--rank);fill-opacity:.75}
.gs-timeline .waits{fill:none;stroke:var(--rank);stroke-dasharray:3 2}
.gs-timeline .bar{fill:var(--rank);fill-opacity:.3}
.gs-timeline .step{fill:none;stroke:currentColor;stroke-opacity:.5;stroke-dasharray:2 3}
"""
_ABBREVIATIONS = ", ".join(f"{short} {op}" for op, short in captions.ABBREVIATIONS.items())
_LEGEND_ENTRIES = (
    *(("compute", "computes"), ("waits", "waits"), ("bar", "collective in progress")),
    ("", _ABBREVIATIONS),
)


@dataclass(frozen=True, slots=True)
class _Lane:
    """The lane of one rank, with its spans."""

    rank: int
    top: float
    computing: list[Span]
    blocked: list[Span]
    collectives: list[tuple[Bar, Span, int]]  # each with its row

    @property
    def bottom(self) -> float:
        rows = 1 + max((row for _, _, row in self.collectives), default=0)
        return self.top + _MAIN + rows * _ROW + _LANE_GAP


class _Axis:
    """Maps a time to pixels from the left."""

    def __init__(self, period: Span) -> None:
        self.start, self.end = period
        self._per_second = _WIDTH / max(self.end - self.start, 1e-9)

    def cut(self, span: Span) -> Span | None:
        """Return the part of a span that is drawn, or None."""
        start, end = max(span[0], self.start), min(span[1], self.end)
        return (start, end) if start < end or start == end == span[0] else None

    def cut_all(self, found: Sequence[Span]) -> list[Span]:
        return [part for span in found if (part := self.cut(span)) is not None]

    def place(self, seconds: float) -> float:
        return _GUTTER + (seconds - self.start) * self._per_second


def render(events: Sequence[Event], world_size: int, steps: Sequence[tuple[str, Span]] = ()) -> str:
    """Return the drawing of a run of `world_size` ranks, or "" without collectives.

    Args:
        events: the events of the run.
        world_size: the number of ranks.
        steps: names and times of consecutive steps; only these are drawn. Without any, the whole
            run is drawn.
    """
    bars = lanes.bars(events, world_size)
    if not bars:
        return ""
    axis = _Axis((steps[0][1][0], steps[-1][1][1]) if steps else spans.period(events))
    plan: list[_Lane] = []
    for rank in range(world_size):
        top = plan[-1].bottom if plan else _TOP + _STEPS * bool(steps)
        mine = [bar for bar in bars if bar.rank == rank]
        plan.append(_lane(events, rank, mine, top, axis))
    bottom = plan[-1].bottom
    title = f"Compute and collectives of {world_size} ranks over time"
    drawing = svg.canvas(_GUTTER + _WIDTH + _MARGIN, bottom + _AXIS + _LEGEND, title, _STYLE)
    for lane in plan:
        _draw_lane(drawing, lane, axis)
    for name, (start, _) in steps:
        x = axis.place(start)
        svg.path(drawing, "step", [(x, _TOP), (x, bottom)])
        svg.text(drawing, "quiet", x + 4, _TOP + svg.BASELINE - 4, name)
    svg.axis(drawing, _GUTTER, bottom, _WIDTH, axis.end - axis.start)
    svg.legend(drawing, _GUTTER, bottom + _AXIS, _LEGEND_ENTRIES)
    return tostring(drawing, encoding="unicode")


def _lane(
    events: Sequence[Event], rank: int, mine: Sequence[Bar], top: float, axis: _Axis
) -> _Lane:
    end = spans.period(events)[1]
    shown = [bar for bar in mine if axis.cut((bar.start, end if bar.end is None else bar.end))]
    return _Lane(
        rank,
        top,
        axis.cut_all(spans.computing(events, rank)),
        axis.cut_all(spans.blocked(events, rank)),
        [(bar, axis.cut(span) or span, row) for bar, span, row in spans.in_rows(shown, end)],
    )


def _draw_lane(drawing: Element, lane: _Lane, axis: _Axis) -> None:
    group = svg.group(drawing, color=rank_colour(lane.rank))
    svg.text(group, "name", 0, lane.top + svg.BASELINE, f"rank {lane.rank}")
    for kind, found in (("compute", lane.computing), ("waits", lane.blocked)):
        for start, end in found:
            left = axis.place(start)
            svg.rect(group, kind, left, lane.top, max(axis.place(end) - left, _THINNEST), _MAIN)
    for bar, (start, end), row in lane.collectives:
        shown = svg.group(group, tooltip=captions.tooltip(bar), color=rank_colour(lane.rank))
        left, top = axis.place(start), lane.top + _MAIN + 3 + row * _ROW
        width = max(axis.place(end) - left, _THINNEST)
        svg.rect(shown, "bar", left, top, width, _ROW - 2)
        if name := captions.in_bar(bar, width - 6):
            svg.text(shown, "label", left + 3, top + svg.BASELINE - 3, name)
