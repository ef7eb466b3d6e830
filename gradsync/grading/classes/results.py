"""Read the results of a class from a folder of grades: reports, roster and overrides.

A result depends only on files: each `report.json`, `.class.json`, `roster.csv`, `overrides.csv`,
and the course's `course.toml`. So nothing is graded again after a correction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from gradsync.class_records import (
    ClassResults,
    ExerciseResult,
    Facts,
    GradedExercise,
    Override,
    Person,
    Result,
)
from gradsync.course.catalogue import Course
from gradsync.course.settings import Settings, read_settings
from gradsync.grading.classes.corrections import (
    days_late,
    lacks_time,
    points_lost,
    read_overrides,
    untimed_text,
)
from gradsync.grading.classes.roster import roster_of, unknown_submission_text, warnings_on
from gradsync.grading.store import OVERRIDES, UNREADABLE, GradeStore
from gradsync.records import Report
from gradsync.reports import gradebook, summary
from gradsync.reports.text import finite
from gradsync.submission.contents import listing
from gradsync.text import counted, listed


def read_class(store: GradeStore, course: Course) -> ClassResults:
    """Return the results of all submissions in a folder of grades, and of people without one.

    Args:
        store: the folder of grades.
        course: the course of these grades.

    Raises:
        TableError: roster.csv or overrides.csv can't be used.
        CourseError: course.toml can't be used.
    """
    reader = ClassReader(store, course)
    return reader.class_of(reader.results())


class ClassReader:
    """Combines the records of a class with the facts and tables about it."""

    def __init__(self, store: GradeStore, course: Course) -> None:
        """Read the files about the class as a whole; raises the errors of `read_class`."""
        self.settings: Settings = read_settings(course.root)
        self.graded_at: datetime | None = None
        self._store = store
        self._phases = course.phases
        self._course = [e for phase in course.phases for e in course.exercises(phase)]
        ids: dict[str, list[str]] = {}
        for exercise in self._course:
            ids[exercise.id] = [exercise.id]
            ids.setdefault(exercise.name, []).append(exercise.id)
        self._roster = roster_of(store.folder)
        self._overrides, self.warnings = read_overrides(store.folder / OVERRIDES, ids)
        self._facts = store.facts()
        self._by_person: dict[Person, list[str]] = {}  # names in overrides.csv
        self._max_points: dict[str, float] = {}  # by exercise

    def submissions(self) -> set[str]:
        """Return the names of the submissions with a report, or on which the grader failed."""
        return set(self._attempts())

    def results(self) -> Iterator[Result]:
        """Yield the results by name, then the missing ones; afterwards `warnings` is complete."""
        places = self._attempts()
        names: dict[str, tuple[str, ...]] = {}
        for learner, folders in places.items():
            facts = self._facts.get(folders[0][1].submission)
            names[learner] = (*(facts.names if facts else ()), learner)
        found = {learner: self._roster.find(*known) for learner, known in names.items()}
        self.warnings += warnings_on(self._roster, names)
        waiting = self._waiting(places)
        present = {*found.values(), *(result.person for result in waiting)}
        absent = {
            person.id if person.id not in places else f"{person.id} (not handed in)": person
            for person in self._roster.people
            if person not in present
        }
        self._find_people({*places, *absent, *(result.submission for result in waiting)})
        untimed: list[str] = []
        for learner in sorted(places):
            attempts = [self._result(learner, *place, found[learner]) for place in places[learner]]
            best = max(attempts, key=_rank)
            if best.score is not None and lacks_time(self.settings.late, best):
                untimed.append(learner)
            yield best
        yield from waiting
        for name in sorted(absent):
            yield self._missing(name, absent[name])
        if untimed:
            self.warnings.append(untimed_text(untimed))
        unread = [learner for learner in sorted(places) if _is_unread(places[learner])]
        if unread:
            self.warnings.append(
                f"{counted(len(unread), 'report')} can't be read: {listing(unread)}. Each is "
                "damaged or of an earlier version. Grade these submissions again."
            )

    def _waiting(self, places: Mapping[str, object]) -> list[Result]:
        """Return the submissions that are not graded yet; of several attempts, the last one."""
        waiting = {
            facts.learner: facts
            for facts in self._facts.values()
            if facts.counts and facts.learner not in places
        }
        return [
            Result(
                learner,
                "not-graded",
                person=self._roster.find(*facts.names, learner),
                handed_in=facts.handed_in,
                notes=facts.notes,
            )
            for learner, facts in sorted(waiting.items())
        ]

    def exercises(self) -> Iterator[GradedExercise]:
        """Yield the exercises in the results, in the order of the course."""
        for each in self._course:
            if each.id in self._max_points:
                yield GradedExercise(each.id, each.name, each.guide, self._max_points[each.id])
        known = {each.id for each in self._course}
        for exercise in self._max_points.keys() - known:  # of an earlier version
            name = exercise.rpartition("/")[2]
            yield GradedExercise(exercise, name, "", self._max_points[exercise])

    def class_of(self, results: Iterable[Result]) -> ClassResults:
        """Return the class with these results, which come from `results()` and may be shortened."""
        by_name = tuple(sorted(results, key=lambda result: result.submission))
        return ClassResults(
            title=self.settings.title,
            phases=self._phases,
            exercises=tuple(self.exercises()),
            results=by_name,
            seed=self._store.seed,
            graded_at=self.graded_at,
            warnings=tuple(self.warnings),
        )

    def _attempts(self) -> dict[str, list[tuple[str, Report]]]:
        """Return, for each learner, the folders and reports of the attempts that count."""
        found: dict[str, list[tuple[str, Report]]] = {}
        for folder, record in self._store.records().items():
            facts = self._facts_on(record.report.submission)
            if facts.counts:
                found.setdefault(facts.learner, []).append((folder, record.report))
        return found

    def _facts_on(self, submission: str) -> Facts:
        return self._facts.get(submission) or Facts(submission, submission)

    def _result(self, learner: str, folder: str, report: Report, person: Person | None) -> Result:
        facts = self._facts_on(report.submission)
        result = Result(
            submission=learner,
            status=report.status,
            person=person,
            handed_in=facts.handed_in,
            attempt=facts.attempt,
            attempts=facts.attempts,
            notes=(*facts.notes, *report.notes),
            download_notes=facts.notes,
            folder=folder,
        )
        if report.problem:
            return replace(result, notes=(*facts.notes, report.problem))
        if report.graded_at is not None:
            self.graded_at = max(self.graded_at or report.graded_at, report.graded_at)
        return self._scored(result, report)

    def _scored(self, result: Result, report: Report) -> Result:
        """Return a result with the points of its report, after overrides and lateness."""
        tested = {each.id: each for each in summary.exercises(report)}
        given = self._overrides_of(result.submission, result.person, tested)
        for each in tested.values():
            most = max(self._max_points.get(each.id, 0.0), finite(each.max_points))
            self._max_points[each.id] = most
        exercises = tuple(
            ExerciseResult(
                each.id,
                given[each.id].points if each.id in given else finite(each.points),
                finite(each.max_points),
                given.get(each.id),
            )
            for each in tested.values()
        )
        self._warn_of_excess(result.submission, exercises)
        added = {name: given[name].points - tested[name].points for name in given}
        score, most = report.score + sum(added.values()), finite(report.max_score)
        late = days_late(self.settings.late, result.handed_in, result.person)
        lost = points_lost(self.settings.late, late, score, most)
        return replace(
            result,
            score=finite(score - lost),
            max_score=most,
            phases=_added(report.phases, added),
            exercises=exercises,
            tests=report.verdicts,
            seconds=finite(report.seconds),
            days_late=finite(late),
            points_lost=finite(lost),
            sandboxed=report.origin is None or report.origin.sandboxed,
        )

    def _missing(self, name: str, person: Person) -> Result:
        given = self._overrides_of(name, person, self._max_points)
        result = Result(name, "missing", person=person)
        if not given:
            return result
        exercises = tuple(
            ExerciseResult(exercise, override.points, self._max_points[exercise], override)
            for exercise, override in given.items()
        )
        self._warn_of_excess(name, exercises)
        return replace(
            result,
            score=finite(sum(each.points for each in exercises)),
            max_score=finite(sum(self._max_points.values())),
            phases=_added({}, {exercise: override.points for exercise, override in given.items()}),
            exercises=exercises,
        )

    def _overrides_of(
        self, name: str, person: Person | None, exercises: Mapping[str, object]
    ) -> dict[str, Override]:
        """Return the overrides of a submission for these exercises, and warn of others."""
        given: dict[str, Override] = {}
        people = self._by_person.get(person, []) if person else []
        for key in dict.fromkeys((*people, gradebook.cell(name), name)):
            for exercise, override in self._overrides.get(key, {}).items():
                if earlier := given.get(exercise):
                    lines = listed(sorted((earlier.line, override.line)))
                    self.warnings.append(
                        f"{OVERRIDES}, lines {lines}: both are about {exercise} of {name}. "
                        f"Line {override.line} counts. Delete the other."
                    )
                given[exercise] = override
        for exercise in given.keys() - exercises.keys():
            self.warnings.append(
                f"{OVERRIDES}: {name} was not graded on {exercise}. The line has no effect."
            )
        return {exercise: given[exercise] for exercise in exercises if exercise in given}

    def _warn_of_excess(self, name: str, exercises: Iterable[ExerciseResult]) -> None:
        self.warnings += [
            f"{OVERRIDES}: {name} gets {each.points:g} points in {each.exercise}, whose "
            f"maximum is {each.max_points:g}."
            for each in exercises
            if each.override and each.points > each.max_points
        ]

    def _find_people(self, learners: set[str]) -> None:
        """Find the people whom overrides name as in the roster, and warn of unknown names."""
        known = learners | {gradebook.cell(learner) for learner in learners}
        for name in sorted(self._overrides.keys() - known):
            if person := self._roster.find(name):
                self._by_person.setdefault(person, []).append(name)
                continue
            lines = [override.line for override in self._overrides[name].values()]
            self.warnings.append(
                f"{OVERRIDES}, {unknown_submission_text(name, lines, self._roster)}"
            )


def _is_unread(attempts: Iterable[tuple[str, Report]]) -> bool:
    return any(report.problem == UNREADABLE for _, report in attempts)


def _rank(result: Result) -> tuple[float, int]:
    """Return the key that is largest for the best attempt, or for the last of equal attempts."""
    return (-1.0 if result.score is None else result.score, result.attempt or 0)


def _added(phases: Mapping[str, float], added: Mapping[str, float]) -> dict[str, float]:
    """Return the points of each phase, plus the points that overrides add to its exercises."""
    sums = dict(phases)
    for exercise, points in added.items():
        phase = exercise.partition("/")[0]
        sums[phase] = sums.get(phase, 0.0) + points
    return {phase: finite(points) for phase, points in sums.items()}
