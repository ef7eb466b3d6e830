"""Draw the collectives of a run, rank by rank, as an SVG that works alone or in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element, tostring

from gradsync.records import Event
from gradsync.reports.timeline import captions, lanes, scale, svg
from gradsync.reports.timeline.lanes import Bar, Gap
from gradsync.reports.timeline.palette import rank_colour
from gradsync.reports.timeline.scale import Scale

_WIDTH = 720.0  # of the lanes; many collectives need more
_LEAST_BARS = 0.66  # share of the width for the bars' minimum; the rest shows their duration
_NARROWEST, _WIDEST = 36.0, 118.0  # limits of a bar's minimum width
_TAIL = 184.0  # width for bars that never end
_GUTTER, _MARGIN, _INSET = 54.0, 8.0, 5.0
_ROW, _ROW_GAP, _LANE_GAP = 22.0, 3.0, 12.0
_TOP, _AXIS, _LEGEND = 6.0, 20.0, 24.0
_STYLE = """
.gs-timeline .operation{fill:currentColor;fill-opacity:.07}
.gs-timeline .operation-line{fill:none;stroke:currentColor;stroke-opacity:.3}
.gs-timeline .differs{fill:#d9483b;fill-opacity:.25}
.gs-timeline .differs-line{fill:none;stroke:#d9483b}
.gs-timeline .bar{fill:var(--rank);fill-opacity:.2;stroke:var(--rank)}
.gs-timeline .hatch{fill:none;stroke:var(--rank);stroke-opacity:.32}
.gs-timeline .gap{fill:#d9483b;fill-opacity:.06;stroke:#d9483b;stroke-dasharray:4 3}
"""


@dataclass(frozen=True, slots=True)
class _Box:
    """A bar or gap with its position in the drawing."""

    item: Bar | Gap
    left: float
    width: float
    top: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + _ROW


@dataclass(frozen=True, slots=True)
class _Plan:
    """The layout of the drawing."""

    boxes: list[_Box]
    tops: list[float]  # of the ranks' lanes, and the bottom of the last one
    axis: Scale

    @property
    def right(self) -> float:
        return _GUTTER + self.axis.edge

    @property
    def is_wide(self) -> bool:
        """Whether the drawing is wider than a page."""
        return self.right > _GUTTER + _WIDTH


def render(events: Sequence[Event], world_size: int) -> str:
    """Return the timeline of a run of `world_size` ranks, or "" without collectives."""
    world_size = min(world_size, lanes.MAX_RANKS)
    found = lanes.bars(events, world_size)
    if not found:
        return ""
    kept = lanes.last_of_each_rank(found)
    items: list[Bar | Gap] = [*kept, *lanes.gaps(found)]
    plan = _plan(items, kept, world_size)
    left_out = len(found) - len(kept)
    notes = captions.legend(
        items, left_out=left_out, shortened=bool(plan.axis.breaks), wide=plan.is_wide
    )
    width = plan.right + (_GUTTER if plan.is_wide else _MARGIN)
    height = plan.tops[-1] + _AXIS + (_LEGEND if notes else 0)
    drawing = svg.canvas(width, height, captions.description(items, world_size), _STYLE)
    _draw_meetings(drawing, plan)
    _draw_lanes(drawing, plan)
    for box in plan.boxes:
        _draw_box(drawing, box)
    _draw_axis(drawing, plan)
    svg.legend(drawing, _GUTTER, plan.tops[-1] + _AXIS, notes, hatched="bar")
    return tostring(drawing, encoding="unicode")


def _plan(items: Sequence[Bar | Gap], bars: Sequence[Bar], world_size: int) -> _Plan:
    by_rank = [[item for item in items if item.rank == rank] for rank in range(world_size)]
    least = _WIDTH * _LEAST_BARS / max(map(len, by_rank))
    least = min(max(least, _NARROWEST), _WIDEST)
    axis = scale.fit(bars, width=_WIDTH, narrowest=least, tail=_TAIL)
    boxes, tops = [], [_TOP]
    for mine in by_rank:
        spans = [axis.span(item) for item in mine]
        # Consecutive bars must not touch, and bars without duration must be visible.
        spans = [(left, max(right - 2.0, left + _NARROWEST - 2.0)) for left, right in spans]
        rows = scale.rows(spans)
        for item, (left, right), row in zip(mine, spans, rows, strict=True):
            top = tops[-1] + row * (_ROW + _ROW_GAP)
            boxes.append(_Box(item, _GUTTER + left, right - left, top))
        tops.append(tops[-1] + (max(rows, default=0) + 1) * (_ROW + _ROW_GAP) + _LANE_GAP)
    return _Plan(boxes, tops, axis)


def _draw_meetings(drawing: Element, plan: _Plan) -> None:
    """Draw a light band from rank to rank for each collective."""
    places = {id(box.item): box for box in plan.boxes}
    for together in lanes.operations([b.item for b in plan.boxes if isinstance(b.item, Bar)]):
        kind = "differs" if lanes.disagree(together) else "operation"
        for upper, lower in pairwise(places[id(bar)] for bar in together):
            if lower.top - upper.bottom > _LANE_GAP + _ROW_GAP:  # a band would cover other bars
                ends = [(upper.left + 2, upper.bottom), (lower.left + 2, lower.top)]
                svg.path(drawing, f"{kind}-line", ends)
                continue
            above = [(upper.left, upper.bottom), (upper.right, upper.bottom)]
            below = [(lower.right, lower.top), (lower.left, lower.top)]
            svg.path(drawing, kind, above + below, closed=True)


def _draw_lanes(drawing: Element, plan: _Plan) -> None:
    """Draw the names of the ranks, at both ends if the drawing may be scrolled."""
    for rank, top in enumerate(plan.tops[:-1]):
        lane = svg.group(drawing, color=rank_colour(rank))
        svg.text(lane, "name", 0, top + svg.BASELINE, f"rank {rank}")
        if plan.is_wide:
            svg.text(lane, "name", plan.right + _MARGIN, top + svg.BASELINE, f"rank {rank}")
    for top in plan.tops[1:-1]:
        middle = top - (_LANE_GAP + _ROW_GAP) / 2
        svg.path(drawing, "line", [(0, middle), (plan.right, middle)])


def _draw_box(drawing: Element, box: _Box) -> None:
    place = (box.left, box.top, box.width, _ROW)
    drawn = svg.group(drawing, tooltip=captions.tooltip(box.item), color=rank_colour(box.item.rank))
    svg.rect(drawn, "gap" if isinstance(box.item, Gap) else "bar", *place)
    if isinstance(box.item, Bar) and box.item.end is None:
        svg.hatch(drawn, "hatch", *place)
    label = captions.label(box.item, box.width - 1.5 * _INSET)
    if label:
        svg.text(drawn, "label", box.left + _INSET, box.top + svg.BASELINE, label)


def _draw_axis(drawing: Element, plan: _Plan) -> None:
    """Draw the times where there is room; the axis is not linear."""
    top, axis = plan.tops[-1], plan.axis
    svg.text(drawing, "quiet", 0, top + svg.BASELINE, "ms")
    svg.path(drawing, "line", [(_GUTTER, top), (plan.right, top)])
    free, before = 0.0, ""
    for label, place in zip(captions.times(axis.moments), axis.places, strict=True):
        left, width = _GUTTER + place, svg.text_width(label)
        if left < free or left + width > plan.right or label == before:
            continue
        svg.path(drawing, "line", [(left, top), (left, top + 4)])
        svg.text(drawing, "quiet", left, top + svg.BASELINE, label)
        free, before = left + width + 16, label
    for place in axis.breaks:
        x = _GUTTER + place
        strokes = [(x - 4, top + 4), (x, top - 4)], [(x, top + 4), (x + 4, top - 4)]
        svg.path(drawing, "operation-line", *strokes)
