"""Texts on what changed a score: corrections and comments of staff, and lateness."""

from __future__ import annotations

from gradsync.class_records import Override, Result
from gradsync.reports.text import amount, printable
from gradsync.text import counted, full_stop


def correction_text(override: Override) -> str:
    """Return a sentence on a correction or a comment of staff."""
    what = "wrote" if override.points is None else f"set the points to {amount(override.points)}"
    test = f" of {override.exercise.rpartition('::')[2]}" if "::" in override.exercise else ""
    return full_stop(printable(f"{override.by} {what}{test}: {override.reason}"))


def charged_text(result: Result) -> str:
    """Return what lateness costs: "2 days, 20 points"."""
    points = f"{amount(result.points_lost)} point{'' if result.points_lost == 1 else 's'}"
    return f"{counted(result.days_charged, 'day')}, {points}"
