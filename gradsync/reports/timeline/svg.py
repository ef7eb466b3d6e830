"""The shapes of a timeline. ElementTree writes them, so all text is escaped."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement

from gradsync.reports.text import printable, round_step

BASELINE = 15.0  # of a text in its row
# The text has the page's colour, so it is readable on light and dark backgrounds.
STYLE = """
.gs-timeline text{fill:currentColor;color:inherit;font:10.5px ui-monospace,Menlo,Consolas,monospace}
.gs-timeline .quiet{fill-opacity:.65}
.gs-timeline .line{fill:none;stroke:currentColor;stroke-opacity:.16}
.gs-timeline .name{fill:color-mix(in srgb,var(--rank) 70%,currentColor);font-weight:600}
"""
_CHARACTER = 6.4  # width in the labels' font at 10.5 pixels; slightly more than in most fonts


def canvas(width: float, height: float, label: str, style: str) -> Element:
    """Return an empty drawing with the styles of its shapes; `label` is for screen readers."""
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}"}
    view = f"0 0 {width:.0f} {height:.0f}"
    kind = {"xmlns": "http://www.w3.org/2000/svg", "class": "gs-timeline", "role": "img"}
    made = Element("svg", {**kind, **size, "viewBox": view, "aria-label": printable(label)})
    SubElement(made, "style").text = STYLE + style
    return made


def group(parent: Element, *, tooltip: str = "", color: str = "") -> Element:
    """Add a group whose shapes show `tooltip` and may use `color` as `var(--rank)`."""
    made = SubElement(parent, "g", {"style": f"--rank:{color}"} if color else {})
    if tooltip:
        SubElement(made, "title").text = printable(tooltip)
    return made


def rect(parent: Element, kind: str, x: float, y: float, width: float, height: float) -> None:
    """Add a rectangle with slightly rounded corners."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    SubElement(parent, "rect", {"class": kind, **place, "rx": "3"})


def text(parent: Element, kind: str, x: float, y: float, content: str) -> None:
    """Add a line of text that begins at `x`; `y` is its baseline."""
    place = {"class": kind, "x": f"{x:.1f}", "y": f"{y:.1f}"}
    SubElement(parent, "text", place).text = printable(content)


def path(
    parent: Element, kind: str, *strokes: list[tuple[float, float]], closed: bool = False
) -> None:
    """Add lines through the points of each stroke, or the shape they enclose."""
    ends = "Z" if closed else ""
    drawn = ("M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points) + ends for points in strokes)
    SubElement(parent, "path", {"class": kind, "d": "".join(drawn)})


def hatch(parent: Element, kind: str, x: float, y: float, width: float, height: float) -> None:
    """Add slanted lines in a rectangle. A pattern would need an id that is unique in the page."""
    strokes = []
    offset = -height + 4.0
    while offset < width:
        low = (x + max(offset, 0.0), y + height + min(offset, 0.0))
        beyond = max(offset + height - width, 0.0)
        strokes.append([low, (x + offset + height - beyond, y + beyond)])
        offset += 7.0
    path(parent, kind, *strokes)


def axis(parent: Element, left: float, top: float, width: float, span: float) -> None:
    """Add a linear axis of `span` seconds, with round times in milliseconds."""
    path(parent, "line", [(left, top), (left + width, top)])
    text(parent, "quiet", 0, top + BASELINE, "ms")
    step = round_step(span / 10) if span > 0 else math.inf
    for number in range(int(span / step + 1e-6) + 1):  # floats are rounded
        seconds = number * step if number else 0.0
        x = left + seconds * width / max(span, 1e-9)
        path(parent, "line", [(x, top), (x, top + 4)])
        text(parent, "quiet", x, top + BASELINE, f"{seconds * 1000:,.10g}")


def legend(
    parent: Element, left: float, top: float, entries: Iterable[tuple[str, str]], hatched: str = ""
) -> None:
    """Add a line of texts, each after a sample of the kind of rectangle that it explains.

    Args:
        parent: the drawing.
        left: where the first sample begins.
        top: the upper edge of the line.
        entries: pairs of a kind, or "" for a text alone, and a text.
        hatched: the kind whose sample is hatched.
    """
    for kind, words in entries:
        if kind:
            sample = group(parent, color="currentColor")
            rect(sample, kind, left, top + 5, 22, 12)
            if kind == hatched:
                hatch(sample, "hatch", left, top + 5, 22, 12)
            left += 28
        text(parent, "quiet", left, top + BASELINE, words)
        left += text_width(words) + 22


def text_width(content: str) -> float:
    """Return the approximate width of a label; Chinese and Japanese characters count twice."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in content)
    return (len(content) + wide) * _CHARACTER
