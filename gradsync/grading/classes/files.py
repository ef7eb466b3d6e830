"""Write the files about a class as a whole, from the results in its folder of grades."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradsync.class_records import Result
from gradsync.course.catalogue import Course
from gradsync.course.guide_texts import guide_texts
from gradsync.errors import UnusableInput
from gradsync.grading.classes.results import ClassReader
from gradsync.grading.output_files import (
    CLASS_PAGE,
    GRADEBOOK,
    PAGE,
    former_gradebook,
    write_whole,
)
from gradsync.reports import corrections, gradebook
from gradsync.reports.class_page import page
from gradsync.reports.class_page.condensing import condensed
from gradsync.submission.contents import listing
from gradsync.text import counted

SMALL = 50  # lines of a gradebook that is always kept up to date
SHARE = 0.05  # the part of a run that is spent on writing the gradebook of a larger class


@dataclass(frozen=True, slots=True)
class Written:
    """The notes for staff on the tables of a class."""

    warnings: list[str]  # on unknown names in overrides.csv, and learners that roster.csv lacks
    missing: list[str]  # names of the people on the roster who handed in nothing
    waiting: list[str]  # names of the submissions that are not graded yet
    corrected: int  # submissions whose points differ from the points of the tests
    submissions: int  # neither missing nor waiting: graded, unreadable, or the grader failed


def write_class(out: Path, course: Course) -> Written:
    """Write the gradebook, class.html, and the corrections into each report.html.

    This is done at the end of a run. Each report.json is read once, and each result is shortened
    for the page, so that memory hardly grows with the class.

    Raises:
        NoGradebook: the existing gradebook.csv can't be read.
        TableError: roster.csv or overrides.csv can't be used.
        CourseError: course.toml can't be used.
    """
    reader = ClassReader(out, course)
    kept: list[Result] = []
    _write_gradebook(_kept(_corrected(reader.results(), out), kept), out, course)
    write_whole(out / CLASS_PAGE, page.render(reader.class_of(kept), guide_texts(course)))
    missing = [each.person.name for each in kept if each.person and each.status == "missing"]
    waiting = [each.submission for each in kept if each.status == "not-graded"]
    corrected = sum(bool(each.overrides or each.points_lost) for each in kept)
    others = len(kept) - len(missing) - len(waiting)
    return Written(reader.warnings, missing, waiting, corrected, others)


def missing_text(people: Sequence[str]) -> str:
    """Return a sentence on people on the roster who handed in nothing, "" if there are none."""
    if not people:
        return ""
    who = counted(len(people), "person", "people")
    return f"{who} on the roster handed in nothing: {listing(people)}"


class Gradebook:
    """The gradebook during a run; it is written often, but takes little of the time."""

    def __init__(self, out: Path, course: Course) -> None:
        self._out, self._course = out, course
        self._next = 0.0  # when it may be written again

    def update(self) -> None:
        """Write the gradebook if the last time was long enough ago.

        Errors are ignored here: staff may be editing roster.csv or overrides.csv. `write_class`
        reports them at the end.
        """
        began = time.monotonic()
        if began < self._next:
            return
        lines = 0
        with suppress(UnusableInput):
            results = ClassReader(self._out, self._course).results()
            lines = _write_gradebook(results, self._out, self._course)
        ended = time.monotonic()
        self._next = ended if lines < SMALL else ended + (ended - began) / SHARE


def lines_of_others(submissions: Iterable[str], out: Path, course: Course) -> list[str]:
    """Return the names of all other submissions with a line in the gradebook, or a report.

    Raises:
        NoGradebook: the existing gradebook.csv can't be read.
    """
    statuses = gradebook.statuses(former_gradebook(out), course.phases)
    lines = {name for name, status in statuses.items() if status not in gradebook.WITHOUT_REPORT}
    known = {gradebook.cell(name) for name in ClassReader(out, course).submissions()}
    return sorted((lines | known) - {gradebook.cell(name) for name in submissions})


def _write_gradebook(results: Iterable[Result], out: Path, course: Course) -> int:
    """Write gradebook.csv, and return its number of lines.

    Results are taken one by one, so that memory does not grow with them.
    """
    exercises = [exercise.id for phase in course.phases for exercise in course.exercises(phase)]
    text = gradebook.render(results, course.phases, exercises, former_gradebook(out))
    write_whole(out / GRADEBOOK, text, gradebook.ENCODING)
    return text.count("\n")


def _kept(results: Iterable[Result], kept: list[Result]) -> Iterator[Result]:
    """Yield the results, and append the data that the class page needs of each to `kept`."""
    for result in results:
        kept.append(condensed(result))
        yield result


def _corrected(results: Iterable[Result], out: Path) -> Iterator[Result]:
    """Yield the results, and show the corrections of each in its report.html."""
    for result in results:
        path = out / result.folder / PAGE
        if result.folder and path.is_file():
            report = path.read_text(encoding="utf-8")
            corrected = corrections.insert(report, result)
            if corrected != report:
                write_whole(path, corrected)
        yield result
