"""One row for each submission or missing person, as the table of the class page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from gradsync.class_records import Result, ResultStatus
from gradsync.reports.class_page.measures import percent
from gradsync.reports.class_page.outliers import Fences
from gradsync.reports.text import amount
from gradsync.text import counted

STATES: dict[ResultStatus, str] = {
    "graded": "graded",
    "unreadable": "unreadable",
    "grader-failed": "grader failed",
    "not-graded": "not graded yet",
    "missing": "missing",
}


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a result."""

    result: Result
    name: str
    handle: str  # the submission or id, if the name differs from it
    link: str  # to the report, relative to the page; "" if there is none
    state: str
    overrides: int
    unusual: tuple[str, ...]  # "a low score", "slow to grade"

    @property
    def remarks(self) -> str:
        """Further facts: unusual values, attempts, overrides, lateness and notes."""
        result = self.result
        parts = [*self.unusual]
        if result.attempts > 1:
            parts.append(f"attempt {result.attempt or '?'} of {result.attempts}")
        if self.overrides:
            parts.append(counted(self.overrides, "override"))
        if result.points_lost > 0:
            parts.append(f"{amount(result.points_lost)} points lost by lateness")
        return ", ".join([*parts, *result.download_notes])


def rows(results: Sequence[Result], scores: Fences | None, times: Fences | None) -> list[Row]:
    """Return the rows of all results, sorted by name.

    Args:
        results: the results of the class.
        scores: limits of a usual score in percent, if there are any.
        times: limits of a usual grading time in seconds, if there are any.
    """
    every = [_row(result, scores, times) for result in results]
    return sorted(every, key=lambda row: (row.name.casefold(), row.handle))


def _row(result: Result, scores: Fences | None, times: Fences | None) -> Row:
    person = result.person
    name = (person and person.name) or result.submission
    return Row(
        result=result,
        name=name,
        handle="" if name == result.submission else result.submission,
        link=f"{quote(result.folder, safe='')}/report.html" if _has_page(result) else "",
        state=STATES[result.status],
        overrides=sum(each.override is not None for each in result.exercises),
        unusual=tuple(_unusual(result, scores, times)),
    )


def _has_page(result: Result) -> bool:
    return bool(result.folder) and result.status in ("graded", "unreadable")


def _unusual(result: Result, scores: Fences | None, times: Fences | None) -> list[str]:
    if result.status != "graded":
        return []
    found = []
    if scores and result.max_score and scores.exclude(percent(result)):
        found.append("a low score" if percent(result) < scores.low else "a high score")
    if times and result.seconds is not None and times.exclude(result.seconds):
        found.append("fast to grade" if result.seconds < times.low else "slow to grade")
    return found
