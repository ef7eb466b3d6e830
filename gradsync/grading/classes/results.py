"""Read the results of a class from a folder of grades: reports, roster and overrides.

A result depends only on files: each `report.json`, `.class.json`, `roster.csv`, `overrides.csv`,
and the course's `course.toml`. So nothing is graded again after a correction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from gradsync.class_records import (
    ClassResults,
    ExerciseResult,
    GradedExercise,
    Override,
    Person,
    Result,
)
from gradsync.course.catalogue import Course
from gradsync.course.settings import Settings, read_settings
from gradsync.grading.classes.facts import Facts, read_facts
from gradsync.grading.classes.lateness import days_late, lacks_time, points_lost, untimed_text
from gradsync.grading.classes.overrides import OVERRIDES, read_overrides
from gradsync.grading.classes.roster import roster_of, unknown_submission_text, warnings_on
from gradsync.grading.output_files import (
    FAILURE,
    REPORT,
    folder_name,
    grade_folders,
    kept_seed,
    read_failure,
)
from gradsync.reports import gradebook, stored
from gradsync.reports.text import finite
from gradsync.text import listed


def read_class(out: Path, course: Course) -> ClassResults:
    """Return the results of all submissions in a folder of grades, and of people without one.

    Args:
        out: the folder that `gradsync grade --out` wrote.
        course: the course of these grades.

    Raises:
        TableError: roster.csv or overrides.csv can't be used.
        CourseError: course.toml can't be used.
    """
    reader = ClassReader(out, course)
    return reader.class_of(reader.results())


class ClassReader:
    """Reads one result after the other, so that memory does not grow with the class."""

    def __init__(self, out: Path, course: Course) -> None:
        """Read the files about the class as a whole; raises the errors of `read_class`."""
        self.settings: Settings = read_settings(course.root)
        self.graded_at: datetime | None = None
        self._out = out
        self._phases = course.phases
        self._course = [e for phase in course.phases for e in course.exercises(phase)]
        ids: dict[str, list[str]] = {}
        for exercise in self._course:
            ids[exercise.id] = [exercise.id]
            ids.setdefault(exercise.name, []).append(exercise.id)
        self._roster = roster_of(out)
        self._overrides, self.warnings = read_overrides(out / OVERRIDES, ids)
        self._facts = read_facts(out)
        self._by_person: dict[Person, list[str]] = {}  # names in overrides.csv
        self._max_points: dict[str, float] = {}  # by exercise

    def submissions(self) -> set[str]:
        """Return the names of the submissions with a report, or on which the grader failed."""
        return set(_places(self._out, self._facts))

    def results(self) -> Iterator[Result]:
        """Yield the results by name, then the missing ones; afterwards `warnings` is complete."""
        places = _places(self._out, self._facts)
        names: dict[str, tuple[str, ...]] = {}
        for learner, folders in places.items():
            facts = self._facts.get(folders[0][0])
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
            seed=kept_seed(self._out),
            graded_at=self.graded_at,
            warnings=tuple(self.warnings),
        )

    def _result(self, learner: str, name: str, folder: str, person: Person | None) -> Result:
        path = self._out / folder / REPORT
        facts = self._facts.get(name) or Facts(name, learner)
        result = Result(
            submission=learner,
            status="grader-failed",
            person=person,
            handed_in=facts.handed_in,
            attempt=facts.attempt,
            attempts=facts.attempts,
            download_notes=facts.notes,
            folder=folder,
        )
        failure = read_failure(path.with_name(FAILURE))
        report = None if failure else stored.read(path.read_text("utf-8", "replace"))
        if report is None:
            problem = failure[1] if failure else "its report.json is damaged: grade it again"
            return replace(result, notes=(*facts.notes, problem))
        graded_at = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
        self.graded_at = max(self.graded_at or graded_at, graded_at)
        return self._scored(result, report, facts)

    def _scored(self, result: Result, report: stored.StoredReport, facts: Facts) -> Result:
        given = self._overrides_of(result.submission, result.person, report.exercises)
        for exercise, (_, most) in report.exercises.items():
            self._max_points[exercise] = max(self._max_points.get(exercise, 0.0), most)
        exercises = tuple(
            ExerciseResult(
                exercise,
                given[exercise].points if exercise in given else points,
                most,
                given.get(exercise),
            )
            for exercise, (points, most) in report.exercises.items()
        )
        self._warn_of_excess(result.submission, exercises)
        added = {e: override.points - report.exercises[e][0] for e, override in given.items()}
        score = report.score + sum(added.values())
        late = days_late(self.settings.late, facts.handed_in, result.person)
        lost = points_lost(self.settings.late, late, score, report.max_score)
        return replace(
            result,
            status=report.status,
            score=finite(score - lost),
            max_score=report.max_score,
            phases=_added(report.phases, added),
            exercises=exercises,
            tests=report.tests,
            seconds=report.seconds,
            days_late=finite(late),
            points_lost=finite(lost),
            notes=(*facts.notes, *report.notes),
            sandboxed=bool(report.made_from.get("sandboxed", True)),
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


def _places(out: Path, facts: Mapping[str, Facts]) -> dict[str, list[tuple[str, str]]]:
    """Return, for each learner, the names and folders of the submissions that count."""
    by_folder = {folder_name(name): name for name in facts}
    places: dict[str, list[tuple[str, str]]] = {}
    for folder in [path.name for path in grade_folders(out)]:
        name = by_folder.get(folder) or _name_in(out / folder)
        known = facts.get(name) if name else None
        if name and (known is None or known.counts):
            places.setdefault(known.learner if known else name, []).append((name, folder))
    return places


def _name_in(folder: Path) -> str:
    """Return the name of the submission in a folder, from the first lines of its files."""
    for file in (REPORT, FAILURE):
        with suppress(OSError, ValueError), (folder / file).open(encoding="utf-8") as lines:
            first = [next(lines, ""), next(lines, "")][1].strip().rstrip(",")
            return str(json.loads(f"{{{first}}}").get("submission", folder.name))
    return folder.name


def _rank(result: Result) -> tuple[float, int]:
    """Return the key that is largest for the best attempt, or for the last of equal attempts."""
    return (-1.0 if result.score is None else result.score, result.attempt or 0)


def _added(phases: Mapping[str, float], added: Mapping[str, float]) -> dict[str, float]:
    """Return the points of each phase, plus the points that overrides add to its exercises."""
    sums = dict(phases)
    for exercise, points in added.items():
        phase = exercise.partition("/")[0]
        sums[phase] = finite(sums.get(phase, 0.0) + points)
    return sums
