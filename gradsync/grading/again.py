"""Render a folder of grades again without grading: wordings, corrections or points have changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.errors import UnusableInput
from gradsync.grading.pages import Written, write_class
from gradsync.grading.store import FAILURE, REPORT, UNREADABLE, GradeStore
from gradsync.grading.suite.weights import Weight, reweighted, weights_of
from gradsync.submission.contents import listing


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
