"""Texts on what changed a score: corrections and comments of staff, lateness and extensions."""

from __future__ import annotations

from gradsync.class_records import Override, Person, Result
from gradsync.reports.text import amount, printable
from gradsync.text import counted, full_stop


def correction_text(override: Override) -> str:
    """Return a sentence on a correction or a comment of staff."""
    what = "wrote" if override.points is None else f"set the points to {amount(override.points)}"
    test = f" of {override.exercise.rpartition('::')[2]}" if "::" in override.exercise else ""
    parts = (f"{override.by} {what}{test}", override.reason)  # points of a rubric may lack a reason
    return full_stop(printable(": ".join(filter(None, parts))))


def extension_text(person: Person | None) -> str:
    """Return what the roster grants: "due 2026-11-02 23:59+01:00, 2 more days"; "" for nothing."""
    if person is None:
        return ""
    due = [f"due {person.due.isoformat(' ', 'minutes')}"] if person.due else []
    days = [f"{amount(person.days)} more day{'' if person.days == 1 else 's'}"]
    return ", ".join([*due, *days * bool(person.days)])


def charged_text(result: Result) -> str:
    """Return what lateness costs: "2 days, 20 points"."""
    points = f"{amount(result.points_lost)} point{'' if result.points_lost == 1 else 's'}"
    return f"{counted(result.days_charged, 'day')}, {points}"
