"""Draw the schedule of a pipeline: when each rank's stage runs forward and backward, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import tostring

from gradsync.reports.timeline import svg
from gradsync.reports.timeline.palette import rank_colour

_WIDTH, _GUTTER, _MARGIN = 1100.0, 62.0, 12.0
_ROW, _GAP, _TOP, _AXIS, _LEGEND = 24.0, 8.0, 8.0, 22.0, 24.0
_STYLE = """
.gs-timeline .forward{fill:var(--rank);fill-opacity:.25;stroke:var(--rank)}
.gs-timeline .backward{fill:var(--rank);fill-opacity:.6;stroke:var(--rank)}
"""
Kind = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Pass:
    """A stage's forward or backward of one microbatch; times are in seconds."""

    kind: Kind
    microbatch: int  # from 1
    start: float
    end: float


Schedule = Sequence[Sequence[Pass]]  # by rank


def render(schedule: Schedule) -> str:
    """Return the drawing of a schedule, or "" if no rank has a pass."""
    passes = [one for mine in schedule for one in mine]
    if not passes:
        return ""
    first, last = min(one.start for one in passes), max(one.end for one in passes)
    per_second = _WIDTH / max(last - first, 1e-9)
    bottom = _TOP + len(schedule) * (_ROW + _GAP)
    title = f"Forward and backward of each microbatch on {len(schedule)} ranks over time"
    drawing = svg.canvas(_GUTTER + _WIDTH + _MARGIN, bottom + _AXIS + _LEGEND, title, _STYLE)
    for rank, mine in enumerate(schedule):
        top = _TOP + rank * (_ROW + _GAP)
        lane = svg.group(drawing, color=rank_colour(rank))
        svg.text(lane, "name", 0, top + svg.BASELINE, f"rank {rank}")
        for one in mine:
            left, width = _GUTTER + (one.start - first) * per_second, (one.end - one.start)
            about = f"rank {rank}: {one.kind} of microbatch {one.microbatch}, {width * 1000:.3g} ms"
            shown = svg.group(lane, tooltip=about, color=rank_colour(rank))
            svg.rect(shown, one.kind, left, top, width * per_second, _ROW)
            if svg.text_width(str(one.microbatch)) < width * per_second:
                svg.text(shown, "number", left + 3, top + svg.BASELINE, str(one.microbatch))
    svg.axis(drawing, _GUTTER, bottom, _WIDTH, last - first)
    svg.legend(drawing, _GUTTER, bottom + _AXIS, (("forward", "forward"), ("backward", "backward")))
    return tostring(drawing, encoding="unicode")


def sentences(schedule: Schedule) -> list[str]:
    """Return the bubble, beside the smallest possible one, and how many microbatches were kept."""
    passes = [one for mine in schedule for one in mine]
    if not passes:
        return ["No stage ran forward."]
    period = max(one.end for one in passes) - min(one.start for one in passes)
    busy = sum(one.end - one.start for one in passes)
    ranks, microbatches = len(schedule), max(one.microbatch for one in passes)
    bubble = 1 - busy / (ranks * max(period, 1e-9))
    least = (ranks - 1) / (microbatches + ranks - 1)
    kept = [_most_kept(mine) for mine in schedule]
    return [
        f"The bubble, in which ranks have nothing to compute, is {bubble:.0%} of the step.",
        f"With {microbatches} microbatches on {ranks} ranks, it is at least {least:.0%}; "
        "messages between the stages, and another order of passes, add to it.",
        f"Rank {kept.index(max(kept))} keeps the activations of up to {max(kept)} microbatches.",
    ]


def _most_kept(passes: Sequence[Pass]) -> int:
    """Return how many microbatches have run forward but not backward, at most."""
    kept = most = 0
    for one in sorted(passes, key=lambda one: one.start):
        kept += 1 if one.kind == "forward" else -1
        most = max(most, kept)
    return most
