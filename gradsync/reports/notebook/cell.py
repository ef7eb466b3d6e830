"""Render a report as a fragment of HTML for a notebook.

A page may have several fragments, in a light or a dark theme: the styles apply only within
`.gs-cell`, and the colours depend on the text colour of the page.
"""

from __future__ import annotations

from gradsync.records import Report
from gradsync.reports import summary
from gradsync.reports.templating import template


def render(report: Report) -> str:
    """Return the report as a fragment of HTML."""
    return _FRAGMENT.render(
        report=report,
        exercises=summary.exercises(report),
        problems=summary.problems(report),
        unfinished=summary.unfinished(report),
        passed=[verdict for verdict in report.verdicts if verdict.status == "passed"],
        repeat=summary.repeat_command(report),
    )


_FRAGMENT = template("cell.html.j2")
