"""Collect the mistakes of a class by code, with the submissions and exercises of each."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradsync.class_records import ClassResults, Result
from gradsync.records import Verdict
from gradsync.reports.class_page.measures import graded
from gradsync.reports.summary import Guide
from gradsync.reports.text import printable

_LONGEST = 240  # characters of an example


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake that some submissions of a class have."""

    code: str
    results: Sequence[Result]
    exercises: Sequence[str]  # names, the most frequent first
    section: Guide | None  # the section that explains it in most exercises
    example: str  # the explanation for the first of the results


@dataclass(slots=True)
class _Found:
    results: list[Result] = field(default_factory=list)
    exercises: Counter[str] = field(default_factory=Counter)
    sections: Counter[Guide] = field(default_factory=Counter)
    example: str = ""


def mistakes(results: ClassResults) -> list[Mistake]:
    """Return the mistakes, the most common first; unwritten exercises do not count."""
    guides = {exercise.id: exercise.guide for exercise in results.exercises}
    found: dict[str, _Found] = {}
    for result in graded(results.results):
        for (code, exercise), test in _first_tests(result).items():
            made = found.setdefault(code, _Found())
            if not made.results or made.results[-1] is not result:
                made.results.append(result)
            made.exercises[exercise.rpartition("/")[2]] += 1
            made.example = made.example or _example(test)
            if section := _section(test, guides):
                made.sections[section] += 1
    every = [_mistake(code, made) for code, made in found.items()]
    return sorted(every, key=lambda mistake: (-len(mistake.results), mistake.code))


def _first_tests(result: Result) -> dict[tuple[str, str], Verdict]:
    """Return the first test with each mistake in each exercise."""
    found: dict[tuple[str, str], Verdict] = {}
    for test in result.tests:
        if test.diagnosis is not None and test.status != "unfinished":
            found.setdefault((test.diagnosis.code, test.exercise), test)
    return found


def _mistake(code: str, made: _Found) -> Mistake:
    names = [name for name, _ in made.exercises.most_common()]
    section = next((section for section, _ in made.sections.most_common(1)), None)
    return Mistake(code, made.results, names, section, made.example)


def _section(test: Verdict, guides: dict[str, str]) -> Guide | None:
    heading = (test.diagnosis and test.diagnosis.guide) or guides.get(test.exercise)
    path = f"{test.exercise.partition('/')[0]}/GUIDELINES.md"
    return Guide(path, heading) if heading else None


def _example(test: Verdict) -> str:
    explanation = test.diagnosis.explanation if test.diagnosis else ""
    return textwrap.shorten(printable(explanation), _LONGEST, placeholder=" …")
