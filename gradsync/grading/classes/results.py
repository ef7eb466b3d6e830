"""Read the results of a class from a folder of grades: reports, roster and overrides.

A result depends only on files: each `report.json`, `.class.json`, `roster.csv`, `overrides.csv`,
and the course's `course.toml`. So nothing is graded again after a correction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gradsync.class_records import (
    RUBRIC,
    TOTAL,
    ClassResults,
    ExerciseResult,
    Facts,
    GradedExercise,
    Override,
    Person,
    Result,
)
from gradsync.course.catalogue import Course
from gradsync.course.settings import SETTINGS_FILE, Settings, read_settings
from gradsync.grading.classes.corrections import (
    days_charged,
    days_late,
    lacks_time,
    points_lost,
    read_overrides,
    untimed_text,
)
from gradsync.grading.classes.roster import roster_of, unknown_submission_text, warnings_on
from gradsync.grading.classes.tables import TableError, errors_text
from gradsync.grading.similar import similar
from gradsync.grading.store import OVERRIDES, UNREADABLE, GradeStore
from gradsync.records import Report
from gradsync.reports import gradebook, summary
from gradsync.reports.text import finite
from gradsync.submission.contents import listing
from gradsync.text import counted, listed, verb


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
        for name in self.settings.rubric:
            ids[f"{RUBRIC}/{name}"] = [f"{RUBRIC}/{name}"]
            ids.setdefault(name, []).append(f"{RUBRIC}/{name}")
        self._roster = roster_of(store.folder)
        path = store.folder / OVERRIDES
        self._overrides, self.warnings, problems = read_overrides(path, ids)
        made_in = store.course
        if made_in and made_in != course.root and not made_in.is_dir():
            self.warnings.append(
                f"These grades were made in {made_in}, which is gone. The title, the due time "
                f"and the points of {course.root / SETTINGS_FILE} count now."
            )
        self._facts = store.facts()
        self._by_person: dict[Person, list[str]] = {}  # names in overrides.csv
        self._max_points: dict[str, float] = {}  # by exercise
        self._of_phases = _points_of_phases(store)
        self._stale: list[str] = []
        if problems:
            raise self._unusable(path, problems)

    def _unusable(self, path: Path, problems: Sequence[TableError]) -> TableError:
        """Return an error on overrides.csv, with the warnings on its other lines."""
        list(self.results())  # completes the warnings
        start = f"{OVERRIDES}, "
        others = [text.removeprefix(start) for text in self.warnings if text.startswith(start)]
        if len(problems) + len(others) == 1:
            return problems[0]
        return TableError(errors_text(path, [*(p.problem for p in problems), *others]))

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
        waiting = self._waiting(places)
        names |= {learner: (*facts.names, learner) for learner, facts in waiting.items()}
        found = {learner: self._roster.find(*known) for learner, known in names.items()}
        self.warnings += warnings_on(self._roster, names)
        present = set(found.values())
        present |= self._namesakes(names[learner] for learner in names if not found[learner])
        absent = {
            person.id if person.id not in places else f"{person.id} (not handed in)": person
            for person in self._roster.people
            if person not in present
        }
        self._find_people({*names, *absent})
        untimed: list[str] = []
        by_hand: dict[str, list[str]] = {}  # by criterion, who still has to be graded
        for learner in sorted(places):
            attempts = [self._result(learner, *place, found[learner]) for place in places[learner]]
            best = max(attempts, key=_rank)
            if best.score is not None and lacks_time(self.settings.late, best):
                untimed.append(learner)
            for each in best.exercises:
                if each.is_waiting:
                    by_hand.setdefault(each.exercise, []).append(learner)
            yield best
        self._find_stale(places)
        for learner, facts in sorted(waiting.items()):
            yield Result(
                learner,
                "not-graded",
                person=found[learner],
                handed_in=facts.handed_in,
                notes=facts.notes,
            )
        for name in sorted(absent):
            yield self._missing(name, absent[name])
        self.warnings += [
            f"{criterion} is not graded yet for {counted(len(learners), 'submission')}: "
            f"{listing(learners)}. Write its points into {OVERRIDES}."
            for criterion, learners in by_hand.items()
        ]
        if untimed:
            self.warnings.append(untimed_text(untimed))
        unread = [
            learner
            for learner in sorted(places)
            if any(report.problem == UNREADABLE for _, report in places[learner])
        ]
        if unread:
            self.warnings.append(
                f"{counted(len(unread), 'report')} can't be read: {listing(unread)}. Each is "
                "damaged or of an earlier version. Grade these submissions again."
            )

    def _namesakes(self, unknown: Iterable[Sequence[str]]) -> set[Person]:
        """Return people who share their name and have handed in, though it is not known who what.

        Args:
            unknown: for each submission without a person, the names that the roster may have.
        """
        counts = Counter(tuple(self._roster.sharing(*names)) for names in unknown)
        return {
            person for people, count in counts.items() if count >= len(people) for person in people
        }

    def _find_stale(self, places: Mapping[str, Sequence[tuple[str, Report]]]) -> None:
        """Find the submissions that other tests graded than the latest ones, and warn of them."""
        graded = [(learner, report) for learner in sorted(places) for _, report in places[learner]]
        current: dict[str, str] = {}  # by phase
        for _, report in sorted(graded, key=lambda pair: pair[1].moment):
            current |= {origin.phase: origin.course for origin in report.origins}
        self._stale = [
            learner
            for learner, report in graded
            if any(origin.course != current[origin.phase] for origin in report.origins)
        ]
        if self._stale:
            self.warnings.append(
                f"{counted(len(self._stale), 'submission')} of {counted(len(places), 'learner')} "
                f"{verb(self._stale, 'was', 'were')} graded with other tests, or another version "
                "of the software, than the latest ones, so the scores can't be compared: "
                f"{listing(self._stale)}. Grade the whole class again, without --only."
            )

    def _waiting(self, places: Mapping[str, object]) -> dict[str, Facts]:
        """Return the learners who are not graded yet; of several attempts, the last one."""
        return {
            facts.learner: facts
            for facts in self._facts.values()
            if facts.counts and facts.learner not in places
        }

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
        groups: dict[object, list[Result]] = {}  # what several handed in together is compared once
        for each in by_name:
            groups.setdefault(each.facts.group or each.submission, []).append(each)
        named = {group[0].submission: group for group in groups.values()}
        return ClassResults(
            title=self.settings.title,
            phases=self._phases,
            exercises=tuple(self.exercises()),
            results=by_name,
            seed=self._store.seed,
            graded_at=self.graded_at,
            warnings=tuple(self.warnings),
            similar=tuple(
                replace(found, members=tuple(r.submission for m in found.members for r in named[m]))
                for found in similar({name: group[0].prints for name, group in named.items()})
            ),
            stale=tuple(self._stale),
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
            facts=facts,
            person=person,
            handed_in=facts.handed_in or (person.handed_in if person else None),
            notes=(*facts.notes, *report.notes),
            folder=folder,
        )
        if report.problem:
            return replace(result, notes=(*facts.notes, report.problem))
        if report.graded_at is not None:
            self.graded_at = max(self.graded_at or report.graded_at, report.graded_at)
        return self._scored(result, report)

    def _scored(self, result: Result, report: Report) -> Result:
        """Return a result with the points of its report, after overrides and lateness."""
        lines = self._overrides_of(result.submission, result.person)
        total = tuple(each for each in lines if each.exercise == TOTAL)
        given = [each.points for each in total if each.points is not None]
        criteria = self._criteria(lines)
        if given or report.status == "unreadable":  # there is nothing to grade by hand
            criteria = (each for each in criteria if each.corrections)
        exercises = (*self._exercises(report, lines), *criteria)
        self._warn(result.submission, exercises, lines, {test.id for test in report.verdicts})
        tested = {each.id: finite(each.points) for each in summary.exercises(report)}
        added = {each.exercise: each.points - tested.get(each.exercise, 0.0) for each in exercises}
        score = report.score + sum(points for points in added.values() if abs(points) > _ROUNDING)
        absent = {name: most for name, most in self._of_phases.items() if name not in report.phases}
        most = finite(report.max_score + sum((*absent.values(), *self.settings.rubric.values())))
        late = days_late(self.settings.late, result.handed_in, result.person)
        lost = points_lost(self.settings.late, late, score, most)
        if given:
            score, lost = given[0], 0.0
        return replace(
            result,
            score=finite(score - lost),
            max_score=most,
            phases=_added(report.phases, added),
            exercises=exercises,
            tests=report.verdicts,
            seconds=finite(report.seconds),
            days_late=finite(late),
            days_charged=days_charged(late),
            points_lost=finite(lost),
            sandboxed=report.sandboxed,
            seed=report.seed,
            prints=report.prints,
            total=total,
            notes=(*result.notes, *(f"missing: {phase}" for phase in absent)),
        )

    def _exercises(self, report: Report, lines: Sequence[Override]) -> Iterator[ExerciseResult]:
        for each in summary.exercises(report):
            tests = {test.id: test.points for test in each.verdicts}
            mine = [line for line in lines if line.exercise in (each.id, *tests)]
            tests |= {
                o.exercise: o.points for o in mine if "::" in o.exercise and o.points is not None
            }
            own = [o.points for o in mine if o.exercise == each.id and o.points is not None]
            points = own[0] if own else sum(tests.values())
            most = finite(each.max_points)
            self._max_points[each.id] = max(self._max_points.get(each.id, 0.0), most)
            # The line about the exercise decides, so it comes first.
            mine.sort(key=lambda line: line.exercise != each.id)
            yield ExerciseResult(each.id, finite(points), most, tuple(mine))

    def _criteria(self, lines: Sequence[Override]) -> Iterator[ExerciseResult]:
        """Yield the criteria that staff grade by hand; without a line, they have no points."""
        for name, most in self.settings.rubric.items():
            id = f"{RUBRIC}/{name}"
            mine = tuple(line for line in lines if line.exercise == id)
            points = next((o.points for o in mine if o.points is not None), 0.0)
            self._max_points[id] = most
            yield ExerciseResult(id, finite(points), finite(most), mine)

    def _missing(self, name: str, person: Person) -> Result:
        lines = self._overrides_of(name, person)
        result = Result(name, "missing", person=person)
        exercises = tuple(
            ExerciseResult(exercise, sum(o.points or 0.0 for o in mine[:1]), most, mine)
            for exercise, most in self._max_points.items()
            if (mine := tuple(line for line in lines if line.exercise == exercise))
        )
        self._warn(name, exercises, lines, set())
        total = tuple(each for each in lines if each.exercise == TOTAL)
        if not exercises and not total:
            return result
        given = [each.points for each in total if each.points is not None]
        return replace(
            result,
            score=finite(given[0] if given else sum(each.points for each in exercises)),
            max_score=finite(sum(self._max_points.values())),
            phases=_added({}, {each.exercise: each.points for each in exercises}),
            exercises=exercises,
            total=total,
        )

    def _overrides_of(self, name: str, person: Person | None) -> list[Override]:
        """Return the corrections of a submission; warn if two lines give different points."""
        people = self._by_person.get(person, []) if person else []
        found: dict[tuple[str, object], Override] = {}
        for key in dict.fromkeys((*people, gradebook.cell(name), name)):
            for override in self._overrides.get(key, []):
                is_comment = override.points is None
                about = (override.exercise, override.line if is_comment else None)
                if earlier := found.get(about):
                    lines = listed(sorted((earlier.line, override.line)))
                    self.warnings.append(
                        f"{OVERRIDES}, lines {lines}: both are about {override.exercise} of "
                        f"{name}. Line {override.line} counts. Delete the other."
                    )
                found[about] = override
        return list(found.values())

    def _warn(
        self,
        name: str,
        exercises: Sequence[ExerciseResult],
        lines: Sequence[Override],
        tests: set[str],
    ) -> None:
        """Warn of too many points, and of corrections of what was not graded."""
        self.warnings += [
            f"{OVERRIDES}, line {each.override.line}: {name} gets {each.points:g} points in "
            f"{each.exercise}, whose maximum is {each.max_points:g}."
            for each in exercises
            if each.override and each.points > each.max_points
        ]
        known = {each.exercise for each in exercises} | tests | {TOTAL}
        self.warnings += [
            f"{OVERRIDES}, line {line.line}: {name} was not graded on {line.exercise}. The line "
            "has no effect."
            for line in lines
            if line.exercise not in known
        ]

    def _find_people(self, learners: set[str]) -> None:
        """Find the people whom overrides name as in the roster, and warn of unknown names."""
        known = learners | {gradebook.cell(learner) for learner in learners}
        for name in sorted(self._overrides.keys() - known):
            if person := self._roster.find(name):
                self._by_person.setdefault(person, []).append(name)
                continue
            lines = [override.line for override in self._overrides[name]]
            self.warnings.append(
                f"{OVERRIDES}, {unknown_submission_text(name, lines, self._roster)}"
            )


def _points_of_phases(store: GradeStore) -> dict[str, float]:
    """Return the possible points of each phase in the grades of a folder."""
    most: dict[str, float] = {}
    for record in store.records().values():
        maxima = record.report.maxima
        most |= {phase: max(maxima[phase], most.get(phase, 0.0)) for phase in maxima}
    return most


_ROUNDING = 1e-6  # points


def _rank(result: Result) -> tuple[float, int]:
    """Return the key that is largest for the best attempt, or for the last of equal attempts."""
    return (-1.0 if result.score is None else result.score, result.facts.attempt or 0)


def _added(phases: Mapping[str, float], added: Mapping[str, float]) -> dict[str, float]:
    """Return the points of each phase, plus the points that overrides add to its exercises."""
    sums = dict(phases)
    for exercise, points in added.items():
        phase = exercise.partition("/")[0]
        sums[phase] = sums.get(phase, 0.0) + points
    return {phase: finite(points) for phase, points in sums.items()}
