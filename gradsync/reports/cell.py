"""A report in a notebook: a fragment of HTML, below the cell that asked for it.

It may stand beside others, in a light or a dark theme: its styles hold within `.gs-cell`, and its
colours follow from that of the text around it.
"""

from __future__ import annotations

from gradsync.records import Report
from gradsync.reports import summary
from gradsync.reports.templating import template


def render(report: Report) -> str:
    """The report as a fragment."""
    return _FRAGMENT.render(
        report=report,
        exercises=summary.exercises(report),
        problems=summary.problems(report),
        unfinished=summary.unfinished(report),
        passed=[verdict for verdict in report.verdicts if verdict.status == "passed"],
        repeat=summary.repeat_command(report),
    )


_FRAGMENT = template("cell.html.j2")
