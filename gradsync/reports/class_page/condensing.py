"""Reduce a result to the data that the class page needs: a large class has many tests."""

from __future__ import annotations

from dataclasses import replace

from gradsync.class_records import Result, TestResult


def condensed(result: Result) -> Result:
    """Return a result with one test for each mistake and status in an exercise, and no messages.

    The page is the same for condensed and for complete results. Of a phase with 150 tests, about
    10 remain.
    """
    kept: dict[tuple[str, str, str], TestResult] = {}
    for test in result.tests:
        code = test.diagnosis.code if test.diagnosis else ""
        kept.setdefault((test.exercise, code, test.status), test)
    short = (replace(test, message="") if test.message else test for test in kept.values())
    return replace(result, tests=tuple(short))
