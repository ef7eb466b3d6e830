"""Render class.html, a single file without external resources that links to the reports."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from gradsync.class_records import ClassResults, Result, ResultStatus, Similar
from gradsync.records import Verdict
from gradsync.reports import class_measures as measures
from gradsync.reports.class_measures import FEWEST, Fences, fences, graded, percent, spread
from gradsync.reports.corrections import charged_text, extension_text
from gradsync.reports.guide_sections import GuideText, sections
from gradsync.reports.summary import Guide, guide, unimported
from gradsync.reports.templating import template
from gradsync.reports.text import amount, printable
from gradsync.text import counted, listed

_LONGEST = 240  # characters of an example
STATES: dict[ResultStatus, str] = {
    "graded": "graded",
    "unreadable": "unreadable",
    "grader-failed": "grader failed",
    "not-graded": "not graded yet",
    "missing": "missing",
}


def render(results: ClassResults, guides: Sequence[GuideText] = ()) -> str:
    """Return the results of a class as an HTML page, with the sections of the guides to read."""
    members = graded(results.results)
    scores = [percent(result) for result in members]
    times = [result.seconds for result in members if result.seconds is not None]
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
        doubtful=list(_doubtful(every)),
        similar=[_similar(found, row_of) for found in results.similar],
        rule=_rule(score_limits, time_limits),
        phases=[p for p in results.phases if any(p in r.phases for r in results.results)],
        sections_of_class=any(r.person and r.person.section for r in results.results),
        read=sections(guides, wanted),
        guide_of=_guide_of,
        moment=lambda time: time.isoformat(sep=" ", timespec="minutes"),
        scripts=["page.js", "class.js"],
    )


@dataclass(frozen=True, slots=True)
class Doubtful:
    """Submissions that were graded, but that a person should look at, with the reasons."""

    title: str
    advice: str
    reasons: Sequence[tuple[Row, Sequence[str]]]


def _doubtful(every: Sequence[Row]) -> Iterator[Doubtful]:
    """Yield the kinds of doubts that some submissions raise."""
    graded = [row for row in every if row.result.status == "graded"]
    for title, advice, found in (
        (
            "Files that can't be imported",
            "All tests of such a file fail. If only an import is wrong, which the tests do not "
            "need, you may want to remove it and grade again.",
            {row.key: unimported(row.result.tests) for row in graded},
        ),
        (
            "Missing or unread files",
            "They have no points. Ask for them again, or correct them and grade again.",
            {
                row.key: [f"no {name}" for name in _notes(row, "missing: ")]
                + _notes(row, "refused: ")
                + _notes(row, "unreadable: ")
                for row in graded
            },
        ),
        (
            "Read with a doubt",
            "Check that the right file was graded.",
            {row.key: _notes(row, "assumed: ") for row in graded},
        ),
        (
            "Remarks from the download",
            "The grader does nothing about them. To grade a text with code, save the code in the "
            "download as the file that it is, beside the text, and grade again.",
            {row.key: row.result.facts.notes for row in every},
        ),
    ):
        if reasons := [(row, found[row.key]) for row in every if found.get(row.key)]:
            yield Doubtful(title, advice, reasons)


def _similar(found: Similar, row_of: Mapping[str, Row]) -> tuple[list[Row], str]:
    """Return submissions, and a text on what they have in common."""
    files = [
        f"{path} {'identical' if share == 1.0 else f'about {round(100 * share)}% the same'}"
        for path, share in found.files
    ]
    return [row_of[name] for name in found.members], ", ".join(files)


def _notes(row: Row, kind: str) -> list[str]:
    return [note.removeprefix(kind) for note in row.result.notes if note.startswith(kind)]


def _guide_of(exercise: str) -> str:
    return f"{exercise.partition('/')[0]}/GUIDELINES.md"


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


@dataclass(slots=True)
class Mistake:
    """A mistake that some submissions of a class have."""

    code: str
    results: list[Result] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)  # of exercises
    sections: Counter[Guide] = field(default_factory=Counter)  # that explain it
    example: str = ""  # the explanation for the first of the results

    @property
    def exercises(self) -> list[str]:
        """The names of the exercises, the most frequent first."""
        return [name for name, _ in self.names.most_common()]

    @property
    def section(self) -> Guide | None:
        """The section that explains it in most exercises."""
        return next((section for section, _ in self.sections.most_common(1)), None)


def mistakes(results: ClassResults) -> list[Mistake]:
    """Return the mistakes, the most common first; unwritten exercises do not count."""
    found: dict[str, Mistake] = {}
    for result in graded(results.results):
        for (code, exercise), test in _first_tests(result).items():
            made = found.setdefault(code, Mistake(code))
            if not made.results or made.results[-1] is not result:
                made.results.append(result)
            made.names[exercise.rpartition("/")[2]] += 1
            text = printable(test.diagnosis.explanation if test.diagnosis else "")
            made.example = made.example or textwrap.shorten(text, _LONGEST, placeholder=" …")
            if section := guide(test):
                made.sections[section] += 1
    return sorted(found.values(), key=lambda mistake: (-len(mistake.results), mistake.code))


def _first_tests(result: Result) -> dict[tuple[str, str], Verdict]:
    """Return the first test with each mistake in each exercise."""
    found: dict[tuple[str, str], Verdict] = {}
    for test in result.tests:
        if test.diagnosis is not None and test.status != "unfinished":
            found.setdefault((test.diagnosis.code, test.exercise), test)
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a result."""

    result: Result
    name: str
    handle: str  # the submission and the id, unless they are the name
    link: str  # to the report, relative to the page; "" if there is none
    code: str  # link to the files, "" if there are none
    state: str
    overrides: int
    unusual: tuple[str, ...]  # "a low score", "slow to grade"

    @property
    def key(self) -> str:
        return self.result.submission

    @property
    def charged(self) -> str:
        """What lateness costs: "2 days, 20 points"."""
        return charged_text(self.result)

    @property
    def remarks(self) -> str:
        """Further facts: unusual values, attempts, overrides, lateness, extension and notes."""
        result, facts = self.result, self.result.facts
        parts = [*self.unusual]
        if facts.attempts > 1:
            parts.append(f"attempt {facts.attempt or '?'} of {facts.attempts}")
        if self.overrides:
            parts.append(counted(self.overrides, "override"))
        if result.points_lost > 0:
            parts.append(f"late: {self.charged}")
        if granted := extension_text(result.person):
            parts.append(f"granted: {granted}")
        parts += ["graded without a sandbox"] * (not result.sandboxed)
        return ", ".join([*parts, *facts.notes])


def rows(results: Sequence[Result], scores: Fences | None, times: Fences | None) -> list[Row]:
    """Return the rows of all results, sorted by name.

    Args:
        results: the results of the class.
        scores: limits of a usual score in percent, if there are any.
        times: limits of a usual grading time in seconds, if there are any.
    """
    names = Counter(result.person.name for result in results if result.person)
    shared = {name for name, count in names.items() if count > 1}
    every = [_row(result, shared, scores, times) for result in results]
    return sorted(every, key=lambda row: (row.name.casefold(), row.handle))


def _row(
    result: Result, shared: Collection[str], scores: Fences | None, times: Fences | None
) -> Row:
    """Return the row of a result; people with a shared name are listed with their ids."""
    person = result.person
    name, handles = result.submission, [result.submission]
    if person is not None:
        is_shared = person.name in shared
        name = person.label if is_shared else person.name
        handles += [] if is_shared else [person.id]
    has_page = result.folder and result.status in ("graded", "unreadable")
    return Row(
        result=result,
        name=name,
        handle=", ".join(dict.fromkeys(each for each in handles if each != name)),
        link=f"{quote(result.folder, safe='')}/report.html" if has_page else "",
        code=f"{quote(result.folder, safe='')}/submission/" if result.prints else "",
        state=STATES[result.status],
        overrides=len(result.overrides),
        unusual=tuple(_unusual(result, scores, times)),
    )


def _unusual(result: Result, scores: Fences | None, times: Fences | None) -> list[str]:
    if result.status != "graded":
        return []
    found = []
    if scores and result.max_score and scores.exclude(percent(result)):
        found.append("a low score" if percent(result) < scores.low else "a high score")
    if times and result.seconds is not None and times.exclude(result.seconds):
        found.append("fast to grade" if result.seconds < times.low else "slow to grade")
    return found


# The least interquartile range: 10 percentage points, and a fifth of the median time or a second.
_NARROWEST_SCORES, _NARROWEST_TIME, _NARROWEST_SECONDS = 10.0, 0.2, 1.0
