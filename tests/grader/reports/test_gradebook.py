"""The gradebook: CSV, a line for each submission."""

from __future__ import annotations

import csv
import io

import pytest
from report_samples import SCRIPT, report, verdict

from gradsync.records import Grade, Report
from gradsync.reports import gradebook, summary

PHASES = ("phase1", "phase2")
HEADER = "submission,score,max_score,phase1,phase2,status\n"


def rows(*reports: Report) -> list[dict[str, str]]:
    grades = [summary.grade(report) for report in reports]
    return list(csv.DictReader(io.StringIO(gradebook.render(grades, PHASES))))


def test_gradebook_has_a_line_for_each_submission_sorted_by_name():
    seen = rows(report(submission="bob"), report(submission="ada"))

    assert [row["submission"] for row in seen] == ["ada", "bob"]


def test_gradebook_has_the_contracts_columns():
    assert gradebook.render([], PHASES) == HEADER


def test_gradebook_leaves_ungraded_phases_empty():
    row = rows(report(verdict(), verdict(status="failed")))[0]

    assert row == {
        "submission": "ada",
        "score": "1.0",
        "max_score": "2.0",
        "phase1": "1.0",
        "phase2": "",
        "status": "graded",
    }


def test_gradebook_sums_each_phase_separately():
    other = verdict(exercise="phase2/ring_all_reduce", points=0.5)

    row = rows(report(verdict(), other))[0]

    assert (row["phase1"], row["phase2"]) == ("1.0", "0.5")


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@sum(A1)", "\t=1", "\uff1d1", "\xa0=1", "\ufeff\u200b=1"]
)
def test_gradebook_escapes_a_name_that_a_spreadsheet_would_compute(name):
    assert rows(report(submission=name))[0]["submission"] == "'" + name


@pytest.mark.parametrize("name", ["a,b", 'a"b', "ada=1", SCRIPT])
def test_gradebook_does_not_change_other_names(name):
    assert rows(report(submission=name))[0]["submission"] == name


def test_gradebook_removes_control_characters():
    seen = gradebook.render([Grade("a\x1b[2J\x07\u202eb\x1b", "graded")], PHASES)

    assert seen.endswith("\na\ufffd\ufffdb\ufffd,,,,,graded\n")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a\nb", "a b"), ("a\r\n=1", "a =1"), ("\r=1", "' =1"), ("\x1b[m=1", "'=1")],
)
def test_gradebook_has_one_line_for_a_name_with_line_breaks(name, expected):
    assert rows(report(submission=name))[0]["submission"] == expected


def test_gradebook_says_when_nothing_could_be_read():
    unreadable = report(verdict(status="missing"), notes=("unreadable: not a zip archive",))

    assert rows(unreadable)[0]["status"] == "unreadable"


def test_gradebook_has_no_numbers_if_the_grader_failed():
    seen = gradebook.render([Grade("ada", "grader-failed")], PHASES)

    assert seen.endswith("\nada,,,,,grader-failed\n")


def test_a_submission_without_files_is_graded():
    assert rows(report(verdict(status="missing")))[0]["status"] == "graded"


def test_a_gradebook_has_a_column_for_each_phase_of_the_course():
    grade = Grade("ada", "graded", 3.0, 4.0, {"phase3": 3.0})

    header, row = gradebook.render([grade], [*PHASES, "phase3"]).splitlines()

    assert header == "submission,score,max_score,phase1,phase2,phase3,status"
    assert row == "ada,3.0,4.0,,,3.0,graded"


def test_lines_are_kept_if_the_course_has_a_new_phase():
    former = f"{HEADER}bob,1.0,2.0,1.0,,graded\n"

    seen = gradebook.render([], [*PHASES, "phase3"], former)

    assert seen.splitlines()[1] == "bob,1.0,2.0,1.0,,,graded"


@pytest.mark.parametrize(
    "header", [HEADER, "submission,score,max_score,phase2,phase1,status\n", "a,b\n"]
)
def test_a_gradebook_of_another_course_is_refused(header):
    with pytest.raises(gradebook.NoGradebook, match="its first line is"):
        gradebook.render([], ["phase1"], header)
