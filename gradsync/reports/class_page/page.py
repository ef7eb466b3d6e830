"""Render class.html, a single file without external resources that links to the reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gradsync.class_records import ClassResults
from gradsync.reports.class_page import measures
from gradsync.reports.class_page.measures import graded, percent, spread
from gradsync.reports.class_page.mistakes import mistakes
from gradsync.reports.class_page.outliers import FEWEST, Fences, fences
from gradsync.reports.class_page.rows import rows
from gradsync.reports.guide_sections import GuideText, sections
from gradsync.reports.templating import template
from gradsync.reports.text import amount
from gradsync.text import listed

# The least interquartile range: 10 percentage points, and a fifth of the median time or a second.
_NARROWEST_SCORES, _NARROWEST_TIME, _NARROWEST_SECONDS = 10.0, 0.2, 1.0


def render(results: ClassResults, guides: Sequence[GuideText] = ()) -> str:
    """Return the results of a class as an HTML page, with the sections of the guides to read."""
    members = graded(results.results)
    scores = [percent(result) for result in members]
    times = [result.seconds for result in results.results if result.seconds is not None]
    time = spread(times)
    score_limits = fences(scores, _NARROWEST_SCORES)
    narrowest = max(_NARROWEST_TIME * time.median, _NARROWEST_SECONDS) if time else 0.0
    time_limits = fences(times, narrowest)
    every = rows(results.results, score_limits, time_limits)
    row_of = {row.result.submission: row for row in every}
    made = mistakes(results)
    wanted = [(one.section.path, one.section.heading) for one in made if one.section]
    successes = measures.successes(results)
    wanted += [
        (_guide_of(each.exercise.id), each.exercise.guide)
        for each in successes
        if each.exercise.guide
    ]
    return template("class.html.j2").render(
        results=results,
        rows=every,
        graded=members,
        scores=spread(scores),
        score_bars=measures.score_bars(members),
        times=time,
        total_time=sum(times),
        time_bars=measures.time_bars(times, time_limits),
        successes=successes,
        mistakes=made,
        concerned={one.code: [row_of[r.submission] for r in one.results] for one in made},
        unusual=[row for row in every if row.unusual],
        rule=_rule(score_limits, time_limits),
        phases=[p for p in results.phases if any(p in r.phases for r in results.results)],
        sections_of_class=any(r.person and r.person.section for r in results.results),
        read=sections(guides, wanted),
        guide_of=_guide_of,
        moment=_moment,
        scripts=["page.js", "class.js"],
    )


def _guide_of(exercise: str) -> str:
    return f"{exercise.partition('/')[0]}/GUIDELINES.md"


def _moment(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="minutes")


def _rule(scores: Fences | None, times: Fences | None) -> str:
    """Return a sentence on which results count as unusual."""
    if scores is None and times is None:
        return f"With fewer than {FEWEST} graded submissions, none is called unusual."
    parts = []
    if scores:
        parts += [f"a score below {amount(scores.low)}%"] * (scores.low > 0)
        parts += [f"a score above {amount(scores.high)}%"] * (scores.high < 100)
    if times:
        parts += [f"a grading time under {amount(times.low)} s"] * (times.low > 0)
        parts.append(f"a grading time over {amount(times.high)} s")
    return (
        f"A result of this class is called unusual if it has {listed(parts, 'or')}. "
        "These limits are 1.5 interquartile ranges below the first and above the third quartile "
        "(Tukey's rule)."
    )
