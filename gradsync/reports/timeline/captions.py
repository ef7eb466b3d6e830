"""The texts of a timeline: labels that fit, tooltips with all details, times and a legend."""

from __future__ import annotations

from collections.abc import Sequence

from gradsync.reports.timeline import lanes
from gradsync.reports.timeline.lanes import Bar, Gap
from gradsync.reports.timeline.svg import text_width

_SHORTEST = 4  # with fewer letters, an op can't be recognised
ABBREVIATIONS = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR"}
_SENTENCES = 16  # of a description
_SHAPES = 8  # of a collective's tensors that are shown; a bucket may have hundreds


def label(item: Bar | Gap, width: float) -> str:
    """Return the longest label for `item` that fits into `width`, or ""."""
    labels = [item.name, _shortened(item.name, width), f"#{item.number}"]
    if isinstance(item, Gap):
        labels = [f"never called {item.name}", "never called", "never"]
    elif item.collective.label:
        labels.insert(0, f"{item.name} {item.collective.label}")
    return next((text for text in labels if text and text_width(text) <= width), "")


def in_bar(bar: Bar, width: float) -> str:
    """Return the longest name of a collective that fits into its bar: its tensor says most."""
    call, brief = bar.collective, abbreviation(bar.collective.op) or f"#{bar.number}"
    names = [bar.name, call.op, brief]
    if call.label is not None:
        names = [f"{call.op} {call.label}", call.label, call.label.partition(".")[0], brief]
    return next((name for name in names if name and text_width(name) <= width), "")


def abbreviation(op: str) -> str | None:
    """Return "AG" for all_gather and all_gather_into_tensor, and so on, or None."""
    return next((short for name, short in ABBREVIATIONS.items() if op.startswith(name)), None)


def tooltip(item: Bar | Gap) -> str:
    """Return all details of `item`, in a few lines."""
    if isinstance(item, Gap):
        others = f"rank {item.missed.rank} is waiting in {item.missed.name}"
        return f"rank {item.rank} never called {item.name}\n{others}\n{_details(item.missed)}"
    took = f"called at {_duration(item.start)}, still waiting"
    if item.end is not None:
        took = f"took {_duration(item.end - item.start)}, starting at {_duration(item.start)}"
    return f"rank {item.rank}: {item.name}\n{_details(item)}\n{took}"


def description(items: Sequence[Bar | Gap], world_size: int) -> str:
    """Return a text on the drawing, for readers who can't see it."""
    missing = [f"Rank {i.rank} never called {i.name}." for i in items if isinstance(i, Gap)]
    waiting = [
        f"Rank {item.rank} is still waiting in {item.name}."
        for item in items
        if isinstance(item, Bar) and item.end is None
    ]
    calls = [item for item in items if isinstance(item, Bar)]
    differing = {call[0].name: None for call in lanes.operations(calls) if lanes.disagree(call)}
    unequal = [f"The calls of {name} do not match." for name in differing]
    begin = f"The collectives of {world_size} ranks over time."
    return " ".join([begin, *(missing + waiting + unequal)[:_SENTENCES]])


def times(moments: Sequence[float]) -> list[str]:
    """Return the moments in milliseconds, with enough decimals to distinguish them."""
    span = (moments[-1] - moments[0]) * 1000
    decimals = 3 if span < 0.5 else 2 if span < 5 else 1 if span < 200 else 0
    return [f"{moment * 1000:,.{decimals}f}" for moment in moments]


def legend(
    items: Sequence[Bar | Gap], *, left_out: int, shortened: bool, wide: bool
) -> list[tuple[str, str]]:
    """Return the legend for unusual marks: pairs of a mark's name, or "", and a text."""
    bars = [item for item in items if isinstance(item, Bar)]
    notes = [("", "the end of the run is on the right")] * wide
    if any(bar.end is None for bar in bars):
        notes.append(("bar", "still waiting"))
    if len(bars) < len(items):
        notes.append(("gap", "never called"))
    if any(map(lanes.disagree, lanes.operations(bars))):
        notes.append(("differs", "calls that do not match"))
    if left_out:
        last = f"the last {lanes.SHOWN} collectives of each rank"
        notes.append(("", f"{last}; {left_out:,} earlier ones are not drawn"))
    if shortened:
        notes.append(("", "// a shortened pause"))
    return notes


def _shortened(name: str, width: float) -> str:
    """Return the name as "reduce_sc… #12", or "" if too little of the op would remain."""
    op, _, number = name.rpartition(" ")
    while op and text_width(f"{op}… {number}") > width:
        op = op[:-1]
    return f"{op}… {number}" if len(op) >= _SHORTEST else ""


def _details(bar: Bar) -> str:
    call = bar.collective
    shapes = " ".join(str(list(shape)) for shape in call.shapes[:_SHAPES])
    more = f"and {len(call.shapes) - _SHAPES} more" if len(call.shapes) > _SHAPES else None
    root = None if call.root is None else f"root {call.root}"
    peer = None if call.peer is None else f"peer {call.peer}"
    group = f"group {call.group}"
    via = call.via and f"in {call.via}"
    details = (via, call.label, call.dtype, shapes, more, call.reduce, root, peer, group)
    where = f"\nat {call.where}" if call.where else ""
    if call.by_test:
        where = "\nin the test itself"
    if len(call.callers) > 1:
        where += f", {' -> '.join(call.callers)}"
    return " · ".join(detail for detail in details if detail) + where


def _duration(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
