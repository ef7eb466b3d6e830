"""report.html: one file that a learner opens, with everything in it and nothing to load.

The words in it come from a learner's program. The templates escape all of them, and a content
security policy sees to it that a page that someone tampered with can't call out either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gradsync.records import Report, Status, Verdict
from gradsync.reports import summary, timeline
from gradsync.reports.palette import rank_colour
from gradsync.reports.text import amount, blocks, counted, printable

STATUS_WORDS: dict[Status, str] = {
    "passed": "done",
    "failed": "failed",
    "error": "exception",
    "deadlock": "deadlock",
    "timeout": "out of time",
    "crashed": "crashed",
    "missing": "missing",
    "unfinished": "to write",
}


def render(report: Report) -> str:
    """The report as a page."""
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
    """By exercise, the id of the first problem that touches it."""
    anchors: dict[str, str] = {}
    for number, problem in enumerate(problems, start=1):
        for exercise in problem.exercises:
            anchors.setdefault(exercise, f"problem-{number}")
    return anchors


def _drawn(verdict: Verdict) -> Markup:
    # Markup, for ElementTree has escaped what came from outside.
    return Markup(timeline.render(verdict.events, verdict.world_size))


def _shown(value: Any) -> Any:
    """What the templates print, whatever it is, once more free of what no escaping repairs."""
    return printable(value) if type(value) is str else value


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(amount=amount, blocks=blocks, colour=rank_colour, timeline=_drawn)
    made.filters.update(
        sentence=summary.sentence, paragraphs=summary.paragraphs, guide=summary.guide
    )
    made.globals.update(words=STATUS_WORDS, hint=summary.hint_command, counted=counted)
    return made


_PAGE = _environment().get_template("page.html.j2")
