"""gradebook.csv: a class at a glance, a line for each submission."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from io import StringIO

from gradsync.records import Report
from gradsync.reports.summary import is_unreadable
from gradsync.reports.text import carriable, finite

COLUMNS = ("submission", "score", "max_score", "phase1", "phase2", "status")

# What a spreadsheet takes for the beginning of a formula, which could read other cells or call out.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LINE_BREAK = re.compile(r"[\r\n]+")


def render(reports: Sequence[Report]) -> str:
    """The reports as CSV, in the order given."""
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(report) for report in reports)
    return lines.getvalue()


def _row(report: Report) -> tuple[str | float, ...]:
    return (
        _cell(report.submission),
        finite(report.score),
        finite(report.max_score),
        _phase(report, "phase1"),
        _phase(report, "phase2"),
        "unreadable" if is_unreadable(report) else "graded",
    )


def _phase(report: Report, phase: str) -> str | float:
    verdicts = report.of_phase(phase)
    return finite(sum(verdict.points for verdict in verdicts)) if verdicts else ""


def _cell(text: str) -> str:
    """The text on one line, as no spreadsheet computes it."""
    disarmed = "'" + text if text.startswith(_FORMULA) else text
    return carriable(_LINE_BREAK.sub(" ", disarmed))
