"""The pages and the gradebook of a folder of grades, made from its records alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradsync.class_records import RUBRIC, Result
from gradsync.course.catalogue import Course
from gradsync.course.guides import guide_texts
from gradsync.course.settings import read_settings
from gradsync.errors import UnusableInput
from gradsync.grading.classes.results import ClassReader
from gradsync.grading.store import (
    CLASS_PAGE,
    FAILURE,
    GRADEBOOK,
    PAGE,
    REPORT,
    UNREADABLE,
    GradeStore,
)
from gradsync.grading.suite.weights import Weight, reweighted, weights_of
from gradsync.records import Report
from gradsync.reports import class_page, gradebook, html, report_json
from gradsync.reports.guide_sections import GuideText
from gradsync.reports.report_json import UnreadableReportError
from gradsync.submission.contents import listing
from gradsync.text import counted

HEAD = 1000  # bytes of a page that contain the digest of what it was made from


@dataclass(frozen=True, slots=True)
class Written:
    """The notes for staff on the files of a class."""

    warnings: list[str]  # on unknown names in overrides.csv, and learners that roster.csv lacks
    missing: list[str]  # names and ids of the people on the roster who handed in nothing
    waiting: list[str]  # names of the submissions that are not graded yet
    corrected: int  # results whose points overrides or lateness have changed
    submissions: int  # neither missing nor waiting: graded, unreadable, or the grader failed
    pages: int  # report.html files that were written


def write_class(store: GradeStore, course: Course, *, again: Collection[str] = ()) -> Written:
    """Write the gradebook, class.html, and each report.html that is not up to date.

    Args:
        store: the folder of grades.
        course: the course of these grades.
        again: folders whose report.html is written even if it is up to date.

    Raises:
        TableError: roster.csv or overrides.csv can't be used.
        CourseError: course.toml can't be used.
    """
    guides = guide_texts(course)
    reader = ClassReader(store, course)
    results = list(reader.results())
    of_folder = {each.folder: each for each in results}  # an attempt may have none
    pages = sum(
        _write_page(store, place, of_folder.get(place), guides, always=place in again)
        for place, record in store.records().items()
        if not record.report.problem
    )
    write_gradebook(store, results, course)
    store.write(CLASS_PAGE, class_page.render(reader.class_of(results), guides))
    missing = [each.person.label for each in results if each.person and each.status == "missing"]
    waiting = [each.submission for each in results if each.status == "not-graded"]
    return Written(
        warnings=reader.warnings,
        missing=missing,
        waiting=waiting,
        corrected=sum(each.is_changed for each in results),
        submissions=len(results) - len(missing) - len(waiting),
        pages=pages,
    )


def render_again(folder: Path, course: Course, warn: Callable[[str], None]) -> Written:
    """Render all pages and the gradebook from the records, with the course's current points.

    Args:
        folder: a folder of grades, or the folder of one submission in it: then only its page is
            rendered again.
        course: the course of these grades.
        warn: called with each warning.

    Raises:
        UnusableInput: the folder has no grades, or none that can be read, or a table is unusable.
        GraderError: a suite can't be imported.
    """
    is_of_one = any((folder / name).is_file() for name in (REPORT, FAILURE))
    store = GradeStore(folder.resolve().parent if is_of_one else folder)
    records = store.records()
    places = {folder.resolve().name} if is_of_one else set(records)
    _check(folder, [records[place].report.problem for place in places])
    with store.locked():
        store.remove_leftovers()
        store.update_facts()
        _reweigh(store, places, course, warn)
        written = write_class(store, course, again=places)
    for warning in written.warnings:
        warn(warning)
    return written


def write_gradebook(store: GradeStore, results: Iterable[Result], course: Course) -> None:
    exercises = [exercise.id for phase in course.phases for exercise in course.exercises(phase)]
    exercises += [f"{RUBRIC}/{name}" for name in read_settings(course.root).rubric]
    text = gradebook.render(results, course.phases, exercises)
    store.write(GRADEBOOK, text.encode(gradebook.ENCODING))


def page_of(
    report: Report, guides: Sequence[GuideText], files: Mapping[str, bytes] | None = None
) -> str:
    """Return report.html without corrections; "" if the grader failed."""
    if report.problem:
        return ""
    digest = hashlib.sha256(report_json.encode(report)).hexdigest()
    return html.render(report, guides, made_from=_stamp(digest, None), files=files)


def corrected_text(count: int) -> str:
    """Return a sentence on scores that the tests alone did not give."""
    changed = f"{counted(count, 'score')} changed by overrides or lateness"
    return f"{changed}: the gradebook has the final points"


def missing_text(people: Sequence[str]) -> str:
    """Return a sentence on people on the roster who handed in nothing, "" if there are none."""
    if not people:
        return ""
    who = counted(len(people), "person", "people")
    return f"{who} on the roster handed in nothing: {listing(people)}"


def _write_page(
    store: GradeStore,
    place: str,
    result: Result | None,
    guides: Sequence[GuideText],
    *,
    always: bool,
) -> bool:
    """Write the page in a folder if it is not up to date; return whether it was written."""
    stamp = _stamp(store.records()[place].digest, result)
    with suppress(FileNotFoundError), (store.folder / place / PAGE).open("rb") as file:
        if not always and stamp.encode() in file.read(HEAD):
            return False
    try:
        report = store.report(place)
    except (FileNotFoundError, UnreadableReportError):  # staff removed it during the run
        return False
    store.write(f"{place}/{PAGE}", html.render(report, guides, result, stamp, store.sources(place)))
    return True


def _stamp(digest: str, result: Result | None) -> str:
    """Return the digest of all that a page shows: the report, the person, and what corrects it."""
    person = result.person if result else None
    corrections = repr((person.name, person.due, person.days)) if person else ""
    if result is not None and result.is_corrected:
        exercises = [each for each in result.exercises if each.corrections or each.is_criterion]
        corrections += repr(
            (
                result.score,
                result.max_score,
                exercises,
                result.total,
                result.days_late,
                result.points_lost,
            )
        )
    return hashlib.sha256(f"{digest} {corrections}".encode()).hexdigest()


def _check(folder: Path, problems: Collection[str]) -> None:
    if not problems:
        raise UnusableInput(
            f"{folder} has no grades. Name a folder that `gradsync grade --out` wrote."
        )
    if all(problem == UNREADABLE for problem in problems):
        raise UnusableInput(
            f"The grades in {folder} are damaged, or an earlier version of gradsync wrote them. "
            "Grade again with `gradsync grade SUBMISSIONS --out FOLDER`."
        )


def _reweigh(
    store: GradeStore, places: Collection[str], course: Course, warn: Callable[[str], None]
) -> None:
    """Give the stored reports the current points and titles of the course's tests."""
    weights: dict[str, Weight] = {}
    for phase in course.graded_phases("hidden"):
        weights |= weights_of(course, "hidden", phase)
    others = [name for place in sorted(places) if (name := _of_other_tests(store, place, weights))]
    if others and weights:
        warn(
            f"The tests have changed since these were graded, so they keep their points: "
            f"{listing(others)}. Grade them again."
        )


def _of_other_tests(store: GradeStore, place: str, weights: Mapping[str, Weight]) -> str:
    """Reweigh a report; return its submission's name if the course has other tests now, or ""."""
    if store.records()[place].report.problem:
        return ""
    report = store.report(place)
    current = reweighted(report, weights)
    if current is None:
        return report.submission
    if current != report:
        store.save(current)
    return ""
