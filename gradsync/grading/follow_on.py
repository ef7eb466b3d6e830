"""Grade exercises again with our functions in place of the wrong ones that they call.

One mistake can fail the tests of several exercises. With `follow_on = "full"` in course.toml, an
exercise that fails and calls a wrong one is graded a second time. The learner's file then ends with
an import of our functions, from a module that contains only those and what they call. If it still
fails, it is wrong itself, and exercises that call it get ours. Of these grades, only the points
count: their messages could contain our functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from gradsync.course.catalogue import Course, CourseError, Exercise
from gradsync.course.templates import make_template
from gradsync.records import Report, Verdict
from gradsync.submission import Submission
from gradsync.text import listed, verb

OURS = "_ours_"  # the beginning of the module's name
Grade = Callable[[Submission, Sequence[str], Sequence[str]], Report]  # files, phases, exercises


def with_follow_on(
    report: Report, submission: Submission, course: Course, phases: Sequence[str], grade: Grade
) -> Report:
    """Return a report in which tests have their points if they pass with our functions.

    Args:
        report: the report on the learner's own files.
        submission: these files.
        course: the course with its solutions; without them, the report is not changed.
        phases: the graded phases.
        grade: grades some exercises of other files, in the same way.
    """
    exercises = {each.id: each for phase in phases for each in course.exercises(phase)}
    failing = _failing(report.verdicts)
    roots: set[str] = set()  # exercises that are wrong themselves
    passed: dict[str, frozenset[str]] = {}  # test -> what was given
    while failing:
        own = {each for each in failing if not _below(each, exercises) & failing.keys()}
        roots |= own
        given: dict[frozenset[str], list[str]] = {}
        for exercise in (each for each in exercises if each in failing.keys() - own):
            given.setdefault(frozenset(_below(exercise, exercises) & roots), []).append(exercise)
        for known, followers in given.items():
            try:
                files = _given(submission.files, known, exercises, course)
            except CourseError:
                return report
            phase = exercises[followers[0]].phase
            again = grade(replace(submission, files=files), [phase], followers)
            passed = {v.id: known for v in again.verdicts if v.status == "passed"} | passed
        failing = {
            exercise: tests
            for exercise, tests in failing.items()
            if exercise not in own and not tests <= passed.keys()
        }
    verdicts = tuple(
        _with_points(each, passed[each.id])
        if each.status != "passed" and each.id in passed
        else each
        for each in report.verdicts
    )
    return replace(report, verdicts=verdicts)


def _failing(verdicts: Iterable[Verdict]) -> dict[str, set[str]]:
    """Return the failing tests by exercise; a file that can't be imported has none."""
    found: dict[str, set[str]] = {}
    for each in verdicts:
        whole_file = each.diagnosis and each.diagnosis.whole_file
        if each.status not in ("passed", "missing") and not whole_file:
            found.setdefault(each.exercise, set()).add(each.id)
    return found


def _below(exercise: str, exercises: Mapping[str, Exercise]) -> set[str]:
    """Return all exercises that this one calls, directly or not."""
    direct = set(exercises[exercise].needs)
    return direct.union(*(_below(each, exercises) for each in direct))


def _given(
    files: Mapping[str, bytes],
    roots: frozenset[str],
    exercises: Mapping[str, Exercise],
    course: Course,
) -> dict[str, bytes]:
    """Return a learner's files with our functions in place of these exercises'.

    Raises:
        CourseError: this copy of the course has no solutions.
    """
    found = dict(files)
    kept = {exercises[id].name for root in roots for id in {root, *_below(root, exercises)}}
    for root in sorted(roots):
        exercise = exercises[root]
        path = f"{exercise.phase}/{exercise.file}"
        module = OURS + PurePosixPath(exercise.file).stem
        if path not in found:
            continue
        solution = course.root / "solutions" / path
        if not solution.is_file():
            raise CourseError(f"{solution} is missing.")
        text = make_template(solution.read_text(encoding="utf-8"), exercise.phase, kept)
        found[f"{exercise.phase}/{module}.py"] = text.encode()
        found[path] += f"\nfrom {module} import {exercise.name}\n".encode("ascii")
    return found


def _with_points(verdict: Verdict, given: frozenset[str]) -> Verdict:
    names = sorted(each.rpartition("/")[2] for each in given)
    text = (
        f"This test passes with our {listed(names)}, so it has its points: the mistake is "
        f"{verb(names, 'there', 'in these')}. With yours: "
    )
    return replace(
        verdict, points=verdict.max_points, given=tuple(names), message=text + verdict.message
    )
