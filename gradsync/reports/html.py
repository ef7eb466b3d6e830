"""Render report.html, a single file without external resources.

Its texts may come from a learner's program. The templates escape all of them, and a content
security policy prevents network access even if a page is tampered with.
"""

from __future__ import annotations

from gradsync.records import Report
from gradsync.reports import summary
from gradsync.reports.templating import template


def render(report: Report) -> str:
    """Return the report as an HTML page."""
    exercises, problems = summary.exercises(report), summary.problems(report)
    share = report.score / report.max_score if report.max_score > 0 else 0.0
    return _PAGE.render(
        report=report,
        percent=round(100 * min(max(share, 0.0), 1.0), 1),
        standing=summary.standing(report),
        files=summary.by_file(report),
        problems=problems,
        anchors=_anchors(problems),
        unfinished=summary.unfinished(report),
        passed=[exercise for exercise in exercises if exercise.passed],
        repeat=summary.repeat_command(report),
        unreadable=summary.is_unreadable(report),
    )


def _anchors(problems: list[summary.Problem]) -> dict[str, str]:
    """Return, for each exercise, the anchor of its first problem."""
    anchors: dict[str, str] = {}
    for number, problem in enumerate(problems, start=1):
        for exercise in problem.exercises:
            anchors.setdefault(exercise, f"problem-{number}")
    return anchors


_PAGE = template("page.html.j2")
