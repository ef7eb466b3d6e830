"""Render report.html, a single file without external resources.

Its texts may come from a learner's program. The templates escape all of them. A content security
policy prevents network access, and any script but the page's own, even if a page is tampered with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradsync.class_records import Result
from gradsync.records import Report
from gradsync.reports import summary
from gradsync.reports.corrections import extension_text
from gradsync.reports.excerpts import excerpt
from gradsync.reports.guide_sections import GuideText, sections
from gradsync.reports.templating import template


def render(
    report: Report,
    guides: Sequence[GuideText] = (),
    result: Result | None = None,
    made_from: str = "",
    files: Mapping[str, bytes] | None = None,
) -> str:
    """Return the report as an HTML page, with the sections of the guides that it refers to.

    Args:
        report: the report.
        guides: all guides of the course.
        result: the result in the class: the learner's name, and what changed the points.
        files: the learner's files, of which the lines around each mistake are shown.
        made_from: a digest that the page keeps, to see later whether it is up to date.
    """
    unreadable = report.status == "unreadable"
    exercises = summary.exercises(report)
    problems = [] if unreadable else summary.problems(report)  # a note says what is wrong
    unfinished = [] if unreadable else summary.unfinished(report)
    verdicts = [verdict for problem in problems for verdict in problem.verdicts]
    verdicts += [exercise.verdicts[0] for exercise in unfinished[:1]]
    wanted = [(guide.path, guide.heading) for guide in map(summary.guide, verdicts) if guide]
    anchors: dict[str, str] = {}  # of each exercise's first problem
    for number, problem in enumerate(problems, start=1):
        for exercise in problem.exercises:
            anchors.setdefault(exercise, f"problem-{number}")
    corrected = result if result and result.is_corrected else None
    score, most = (corrected or report).score or 0.0, (corrected or report).max_score or 0.0
    share = score / most if most > 0 else 0.0
    return _PAGE.render(
        report=report,
        name=result.person.name if result and result.person else report.submission,
        corrected=corrected,
        granted=extension_text(result.person if result else None),
        by_staff={each.exercise: each for each in corrected.exercises if each.override}
        if corrected
        else {},
        criteria=[each for each in corrected.exercises if each.is_criterion] if corrected else [],
        made_from=made_from,
        percent=round(100 * min(max(share, 0.0), 1.0), 1),
        standing=summary.standing(report),
        files=summary.by_file(report),
        problems=problems,
        code=lambda verdict: excerpt(verdict, files or {}),
        anchors=anchors,
        unfinished=unfinished,
        passed=[exercise for exercise in exercises if exercise.passed],
        read=sections(guides, wanted),
        scripts=["page.js"],
        repeat=summary.repeat_command(report),
        unreadable=unreadable,
    )


_PAGE = template("page.html.j2")
