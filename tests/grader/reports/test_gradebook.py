"""The gradebook: CSV, a line for each submission."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from report_samples import SCRIPT, SUM_NOT_MEAN, verdict

from gradsync.class_records import ExerciseResult, Facts, Override, Person, Result
from gradsync.reports import gradebook

PHASES = ("phase1", "phase2")
CONTRACT = "submission,score,max_score,phase1,phase2,status"


def rows(*results: Result) -> list[dict[str, str]]:
    text = gradebook.render(results, PHASES, ["phase1/double"])
    return list(csv.DictReader(io.StringIO(text)))


def graded(submission: str = "ada", **changes: Any) -> Result:
    return replace(Result(submission, "graded", 1.0, 2.0, {"phase1": 1.0}), **changes)


def filled(row: dict[str, str]) -> dict[str, str]:
    return {name: cell for name, cell in row.items() if cell}


def test_gradebook_has_a_line_for_each_submission_sorted_by_name():
    seen = rows(graded("bob"), graded("ada"))

    assert [row["submission"] for row in seen] == ["ada", "bob"]


def test_gradebook_begins_with_the_contracts_columns():
    assert gradebook.render([], PHASES).startswith(CONTRACT)


def test_gradebook_leaves_ungraded_phases_and_unknown_facts_empty():
    row = rows(graded())[0]

    assert filled(row) == {
        "submission": "ada",
        "score": "1.0",
        "max_score": "2.0",
        "phase1": "1.0",
        "status": "graded",
    }


def test_gradebook_has_the_points_of_each_exercise_and_the_first_mistake():
    test = verdict(status="failed", diagnosis=SUM_NOT_MEAN)
    exercise = ExerciseResult("phase1/double", 1.5, 2.0)

    row = rows(graded(tests=(test,), exercises=(exercise,)))[0]

    assert (row["phase1/double"], row["first_mistake"]) == ("1.5", "sum-not-mean")


def test_gradebook_has_the_person_and_when_the_submission_was_handed_in():
    moment = datetime(2026, 10, 30, 12, tzinfo=timezone.utc)
    person = Person("17", "=Ada", "ada@x.org", "Tuesday")
    late = {"handed_in": moment, "days_late": 1.5, "days_charged": 2, "points_lost": 2.0}

    row = rows(
        graded(
            person=person, facts=Facts("a", "a", attempt=2, attempts=3), notes=("a", "b"), **late
        )
    )[0]

    assert list(row.values())[-10:] == [
        *("17", "'=Ada", "ada@x.org", "Tuesday"),
        *("2026-10-30 12:00:00+00:00", "1.5", "2", "2.0", "2 of 3", "a; b"),
    ]


def test_gradebook_says_what_staff_have_not_graded_yet():
    [row] = rows(graded(notes=("late",), exercises=(ExerciseResult("rubric/style", 0.0, 5.0),)))

    assert row["notes"] == "late; rubric/style is not graded yet"


def test_gradebook_shows_overrides():
    override = Override("ada", "phase1/double", 2.0, "appeal", "Kim")

    row = rows(graded(exercises=(ExerciseResult("phase1/double", 2.0, 2.0, (override,)),)))[0]

    assert row["overrides"] == "phase1/double: 2 by Kim: appeal"


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@sum(A1)", "\t=1", "\uff1d1", "\xa0=1", "\ufeff\u200b=1"]
)
def test_gradebook_escapes_a_name_that_a_spreadsheet_would_compute(name):
    assert rows(graded(name))[0]["submission"] == "'" + name


@pytest.mark.parametrize("name", ["a,b", 'a"b', "ada=1", SCRIPT])
def test_gradebook_does_not_change_other_names(name):
    assert rows(graded(name))[0]["submission"] == name


def test_gradebook_removes_control_characters():
    seen = rows(graded("a\x1b[2J\x07\u202eb\x1b"))[0]["submission"]

    assert seen == "a\ufffd\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a\nb", "a b"), ("a\r\n=1", "a =1"), ("\r=1", "' =1"), ("\x1b[m=1", "'=1")],
)
def test_gradebook_has_one_line_for_a_name_with_line_breaks(name, expected):
    assert rows(graded(name))[0]["submission"] == expected


@pytest.mark.parametrize("status", ["grader-failed", "missing"])
def test_gradebook_has_no_numbers_without_a_grade(status):
    row = rows(Result("ada", status))[0]

    assert filled(row) == {"submission": "ada", "status": status}
