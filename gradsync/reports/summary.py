"""Arrange a report by file, exercise and problem, for all renderers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from gradsync.records import FIRST_PHASE, Printed, Report, Status, Verdict
from gradsync.reports.text import printable, slug
from gradsync.text import counted, full_stop, ranks_text

T = TypeVar("T")
LATER = "Perhaps because of the mistake above: correct that one first, then check again."
_NAMED = 3  # exercises of a problem that are named; more are only counted


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts of some tests, and their points."""

    verdicts: tuple[Verdict, ...]

    @property
    def points(self) -> float:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def max_points(self) -> float:
        return sum(verdict.max_points for verdict in self.verdicts)


class Exercise(Verdicts):
    """One exercise and its verdicts."""

    @property
    def id(self) -> str:
        """The exercise's id, "phase1/NAME"."""
        return self.verdicts[0].exercise

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    @property
    def file(self) -> str:
        """The learner's file that contains it."""
        return self.verdicts[0].file

    @property
    def passed(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.status == "passed")

    @property
    def given(self) -> tuple[str, ...]:
        """The exercises in whose place our functions give points here."""
        return tuple(dict.fromkeys(name for verdict in self.verdicts for name in verdict.given))

    @property
    def is_right_with_ours(self) -> bool:
        """Whether it has all points, though some of them only with our functions for others."""
        failed = [verdict for verdict in self.verdicts if verdict.status != "passed"]
        return bool(failed) and all(verdict.given for verdict in failed)

    @property
    def status(self) -> Status:
        """The status of the whole exercise: mistakes first, then unfinished parts."""
        statuses = [verdict.status for verdict in self.verdicts]
        mistakes = [status for status in statuses if status not in ("passed", "unfinished")]
        if mistakes:
            return mistakes[0]
        return "unfinished" if "unfinished" in statuses else "passed"


@dataclass(frozen=True, slots=True)
class Problem(Verdicts):
    """One mistake, and the tests that fail because of it; the first one is shown."""

    is_later: bool = False  # its exercises have an earlier problem, which may be its cause

    @property
    def first(self) -> Verdict:
        return self.verdicts[0]

    @property
    def others(self) -> tuple[Verdict, ...]:
        return self.verdicts[1:]

    @property
    def exercises(self) -> tuple[str, ...]:
        """The ids of the exercises with this mistake, in order."""
        return tuple(dict.fromkeys(verdict.exercise for verdict in self.verdicts))

    @property
    def title(self) -> str:
        """The names of the exercises, or their number."""
        names = [exercise.rpartition("/")[2] for exercise in self.exercises]
        return ", ".join(names) if len(names) <= _NAMED else counted(len(names), "exercise")

    @property
    def of_whole_file(self) -> bool:
        """Whether a file is missing or can't be imported, which fails all its tests."""
        return self.first.status == "missing" or _is_of_whole_file(self.first)

    @property
    def sentence(self) -> str:
        """The first test's sentence, or "" if the problem affects a whole file."""
        return "" if self.of_whole_file else sentence(self.first)


@dataclass(frozen=True, slots=True)
class Guide:
    """A section of the guide."""

    path: str  # "phase1/GUIDELINES.md"
    heading: str  # "Gradient aggregation"

    @property
    def link(self) -> str:
        """The path with the heading's anchor, as in GitHub and most editors."""
        return f"{self.path}#{slug(self.heading)}"


def exercises(report: Report) -> list[Exercise]:
    """Return the exercises in the order of the suite."""
    return list(map(Exercise, _group(report.verdicts, lambda verdict: verdict.exercise)))


def by_file(report: Report) -> dict[str, list[Exercise]]:
    """Return the exercises of each of the learner's files."""
    files: dict[str, list[Exercise]] = {}
    for exercise in exercises(report):
        files.setdefault(exercise.file, []).append(exercise)
    return files


def unfinished(report: Report) -> list[Exercise]:
    """Return the exercises with an unfinished part, in order."""
    return [e for e in exercises(report) if any(v.status == "unfinished" for v in e.verdicts)]


def problems(report: Report) -> list[Problem]:
    """Return each mistake once, in the order of the exercises; unfinished parts do not count.

    Files that can't be imported come first, because all their tests fail for this reason.
    """
    found = [problem for exercise in exercises(report) for problem in problems_of(exercise)]
    together = _group(found, lambda problem: _mistake(problem.first))
    joined = [Problem(tuple(v for each in group for v in each.verdicts)) for group in together]
    in_order = sorted(joined, key=lambda each: not _is_of_whole_file(each.first))
    known: set[str] = set()
    for at, problem in enumerate(in_order):
        in_order[at] = replace(problem, is_later=known.issuperset(problem.exercises))
        known.update(problem.exercises)
    return in_order


def problems_of(exercise: Exercise) -> list[Problem]:
    """Return each mistake of an exercise once.

    A test that only sees a symptom, and a deadlock in which ranks wait at the line of another one,
    belong to the mistake that another test names.
    """
    wrong = [v for v in exercise.verdicts if v.status not in ("passed", "unfinished")]
    found: list[tuple[Verdict, ...]] = []
    for group in sorted(_group(wrong, _mistake), key=lambda group: _is_vague(group[0])):
        causes = (at for at, known in enumerate(found) if _explains(known[0], group[0]))
        at = next(causes, None)
        if at is None:
            found.append(group)
        else:
            found[at] += group
    return [Problem(group) for group in found]


def unimported(verdicts: Iterable[Verdict]) -> list[str]:
    """Return a sentence for each file that can't be imported: the place and the exception."""
    texts = (v.diagnosis.explanation for v in verdicts if v.diagnosis and v.diagnosis.whole_file)
    return list(dict.fromkeys(full_stop(text.partition(". ")[0]) for text in texts))


def causes(report: Report) -> int:
    """Return how many mistakes there are at least.

    Tests of one exercise may all fail because of one mistake, and so may an exercise that builds on
    a wrong one.
    """
    wrong = problems(report)
    files = [problem for problem in wrong if problem.of_whole_file]
    rest = [verdict for problem in wrong if problem not in files for verdict in problem.verdicts]
    own = {verdict.exercise for verdict in rest if not verdict.causes and not verdict.given}
    return len(files) + len(own)


def standing(report: Report) -> str:
    """Return a sentence on the state of the submission."""
    if report.status == "unreadable":
        return "Nothing could be read, so nothing was graded."
    every = exercises(report)
    done = sum(each.status == "passed" or each.is_right_with_ours for each in every)
    state = _listed([f"{done} of {counted(len(every), 'exercise')} done", *_left(report)])
    causes = [
        f"{text} So no test of this file could run. Files that import it were tested with a "
        "substitute."
        for text in unimported(report.verdicts)
    ]
    return " ".join([*causes, state])


def visible_standing(report: Report, *, whole: bool = False) -> str:
    """Return a sentence on the results of the visible tests, which check less than a grade.

    With `whole`, the report has the results of the hidden tests too.
    """
    every = exercises(report)
    done = sum(exercise.status == "passed" for exercise in every)
    if done == len(every) and whole:
        return "All tests pass, including the hidden tests, which give the points."
    if done == len(every):
        return (
            "The visible tests pass. The hidden tests, which give the points, check the same with "
            "other numbers."
        )
    tests = "all tests" if whole else "the visible tests"
    pass_ = "passes" if done == 1 else "pass"
    count = [f"{done} of {len(every)} exercises {pass_} {tests}"] * (len(every) > 1)
    return _listed([*count, *_left(report)])


def _left(report: Report) -> list[str]:
    wrong, gaps = causes(report), len(unfinished(report))
    return [f"{counted(wrong, 'mistake')} to fix"] * (wrong > 0) + (
        [f"{gaps} still to write"] * (gaps > 0)
    )


def _listed(parts: list[str]) -> str:
    return ", ".join(parts) + "."


def sentence(verdict: Verdict) -> str:
    """Return the test's docstring, with its parameters."""
    path, bracket, parameters = verdict.id.partition("[")
    name = path.rpartition("::")[2].removeprefix("test_").replace("_", " ")
    words = " ".join(verdict.title.split()) or name
    return f"{words} [{parameters}" if bracket else words


def paragraphs(verdict: Verdict) -> list[str]:
    """Return the message and the explanation, without repetition."""
    message, explanation = verdict.message.strip(), ""
    if verdict.diagnosis is not None:
        explanation = verdict.diagnosis.explanation.strip()
    if explanation in message:
        return [message] if message else []
    return [explanation] if message in explanation else [message, explanation]


def printed_by(block: Printed) -> str:
    """Return a text on the ranks that printed some lines, and on omitted earlier lines."""
    before = f", after {counted(block.omitted, 'more line')}" if block.omitted else ""
    return f"printed by {ranks_text(block.ranks)}{before}"


def guide(verdict: Verdict) -> Guide | None:
    """Return the section of the guide that explains the mistake."""
    section = (verdict.diagnosis and verdict.diagnosis.guide) or verdict.guide
    if not section:
        return None
    return Guide(f"{verdict.phase}/GUIDELINES.md", section)


def short_name(exercise: Exercise) -> str:
    """Return the name of an exercise for a command, with its phase unless that is the first."""
    name = exercise.name if exercise.id.startswith(f"{FIRST_PHASE}/") else exercise.id
    return shlex.quote(printable(name))


def hint_command(exercise: Exercise) -> str:
    """Return the command that shows a hint."""
    return f"gradsync hint {short_name(exercise)}"


def repeat_command(report: Report) -> str:
    """Return the command that repeats the grade: "gradsync check NAME --seed 7"."""
    command = printable(report.command)
    if command.endswith(", "):  # a call in a notebook, to be completed by an argument
        return f"{command}seed={report.seed})"
    return f"{command} --seed {report.seed}"


def _is_of_whole_file(verdict: Verdict) -> bool:
    return verdict.diagnosis is not None and verdict.diagnosis.whole_file


def _is_vague(verdict: Verdict) -> bool:
    """Return whether a test only knows that something is wrong."""
    known = verdict.diagnosis
    return verdict.status == "failed" and (known is None or known.vague)


def _explains(known: Verdict, verdict: Verdict) -> bool:
    """Return whether the mistake of a test is probably that of another test of the exercise."""
    one, other = known.diagnosis, verdict.diagnosis
    if _is_vague(verdict) and not _is_vague(known):
        return True
    if one is None or other is None:
        return False
    if other.vague:
        return True
    if known.status == verdict.status == "deadlock":
        return bool(one.where) and f"{one.where}" in other.explanation
    return one.code == other.code and None in (one.where, other.where)


def _mistake(verdict: Verdict) -> Hashable:
    if verdict.status == "missing":  # one missing file is one mistake
        return verdict.status, verdict.message
    if verdict.diagnosis is None:
        return verdict.exercise, verdict.status, verdict.message
    if _is_of_whole_file(verdict):
        return verdict.status, verdict.diagnosis.where, verdict.diagnosis.explanation
    # The line at which a loop was stopped is random.
    where = None if verdict.status == "timeout" else verdict.diagnosis.where
    return verdict.exercise, verdict.diagnosis.code, where


def _group(items: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[T, ...]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [tuple(group) for group in groups.values()]
