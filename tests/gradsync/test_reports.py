"""What all reports share, and the two that programs read: JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from report_samples import SCRIPT, SUM_NOT_MEAN, report, verdict

from gradsync.records import Diagnosis, Grade, Origin, Report
from gradsync.reports import gradebook, machine, summary
from gradsync.reports.text import amount, blocks, carriable, printable

ORIGIN = Origin("files", "course", sandboxed=True)


def loaded(of: Report) -> dict:
    """The report after a strict reader: no NaN, and as bytes of UTF-8."""

    def refuse(constant):
        raise ValueError(constant)

    return json.loads(machine.render(of).encode("utf-8"), parse_constant=refuse)


def rows(*reports: Report) -> list[dict[str, str]]:
    grades = [summary.grade(report) for report in reports]
    return list(csv.DictReader(io.StringIO(gradebook.render(grades))))


def test_reports_load_without_torch():
    script = (
        "import sys; from gradsync.reports import gradebook, html, machine, terminal;"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# JSON


def test_json_has_the_contracts_keys_and_the_seed():
    seen = loaded(report(verdict(), notes=("x.ipynb was ignored",)))

    assert seen == {
        "submission": "ada",
        "score": 1.0,
        "max_score": 1.0,
        "seconds": 3.2,
        "tests": [
            {
                "id": "phase1/trainer::test_average_gradients",
                "exercise": "phase1/average_gradients",
                "points": 1.0,
                "max_points": 1.0,
                "status": "passed",
                "message": "",
                "diagnosis": None,
            }
        ],
        "seed": 7,
        "notes": ["x.ipynb was ignored"],
        "status": "graded",
        "phases": {"phase1": 1.0},
        "made_from": None,
    }


def test_a_grade_is_read_back_as_it_was_written():
    third = verdict(points=1 / 3)
    written = report(third, third, submission="a\ud800", origin=ORIGIN)
    grade = machine.read(machine.render(written), ORIGIN, seed=7)

    assert grade is not None
    assert gradebook.render([grade]) == gradebook.render([summary.grade(written)])


@pytest.mark.parametrize(
    ("origin", "seed"),
    [
        (Origin("other", "course", sandboxed=True), 7),
        (Origin("files", "other", sandboxed=True), 7),
        (Origin("files", "course", sandboxed=False), 7),
        (ORIGIN, 8),
    ],
)
def test_a_grade_made_from_something_else_is_not_read(origin, seed):
    assert machine.read(machine.render(report(origin=ORIGIN)), origin, seed) is None


def test_json_tells_the_diagnosis_with_line_and_guide():
    seen = loaded(report(verdict(status="failed", diagnosis=SUM_NOT_MEAN)))

    assert seen["tests"][0]["diagnosis"] == {
        "code": "sum-not-mean",
        "ranks": [0, 1, 2, 3],
        "explanation": "every rank has 4 times the mean",
        "where": "template_trainer.py:94",
        "guide": "Gradient aggregation",
    }


def test_json_leaves_out_a_line_and_a_guide_that_nobody_knows():
    unknown = replace(SUM_NOT_MEAN, where=None, guide=None)

    seen = loaded(report(verdict(status="failed", diagnosis=unknown)))

    assert set(seen["tests"][0]["diagnosis"]) == {"code", "ranks", "explanation"}


def test_json_rounds_scores_to_two_decimals():
    seen = loaded(report(verdict(points=1 / 3), verdict(points=1 / 3)))

    assert seen["score"] == 0.67


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_json_counts_what_is_no_number_as_nothing(number):
    seen = loaded(report(verdict(points=number), seconds=number))

    assert (seen["score"], seen["seconds"], seen["tests"][0]["points"]) == (0.0, 0.0, 0.0)


def test_json_is_utf8_whatever_a_message_holds():
    seen = loaded(report(verdict(status="failed", message="π \ud800 \x00 \x1b")))

    assert seen["tests"][0]["message"] == "π \ufffd \ufffd \x1b"


# CSV


def test_gradebook_has_a_line_for_each_submission_in_the_order_given():
    seen = rows(report(submission="bob"), report(submission="ada"))

    assert [row["submission"] for row in seen] == ["bob", "ada"]


def test_gradebook_has_the_contracts_columns():
    assert gradebook.render([]) == "submission,score,max_score,phase1,phase2,status\n"


def test_gradebook_leaves_a_phase_empty_that_was_not_graded():
    row = rows(report(verdict(), verdict(status="failed")))[0]

    assert row == {
        "submission": "ada",
        "score": "1.0",
        "max_score": "2.0",
        "phase1": "1.0",
        "phase2": "",
        "status": "graded",
    }


def test_gradebook_adds_up_each_phase_by_itself():
    other = verdict(exercise="phase2/ring_all_reduce", points=0.5)

    row = rows(report(verdict(), other))[0]

    assert (row["phase1"], row["phase2"]) == ("1.0", "0.5")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum(A1)", "\t=1"])
def test_gradebook_disarms_a_name_that_a_spreadsheet_would_compute(name):
    assert rows(report(submission=name))[0]["submission"] == "'" + name


@pytest.mark.parametrize("name", ["a,b", 'a"b', "ada=1", SCRIPT])
def test_gradebook_keeps_any_other_name_as_it_is(name):
    assert rows(report(submission=name))[0]["submission"] == name


@pytest.mark.parametrize(
    ("name", "expected"), [("a\nb", "a b"), ("a\r\n=1", "a =1"), ("\r=1", "' =1")]
)
def test_gradebook_keeps_to_one_line_for_each_submission(name, expected):
    assert rows(report(submission=name))[0]["submission"] == expected


def test_gradebook_says_when_nothing_could_be_read():
    unreadable = report(verdict(status="missing"), notes=("unreadable: not a zip archive",))

    assert rows(unreadable)[0]["status"] == "unreadable"


def test_gradebook_has_no_numbers_where_the_grader_failed():
    assert gradebook.render([Grade("ada", "grader-failed")]).endswith("\nada,,,,,grader-failed\n")


def test_a_submission_without_any_file_is_graded_all_the_same():
    assert rows(report(verdict(status="missing")))[0]["status"] == "graded"


# What all of them share


def test_exercises_keep_the_order_of_the_suite():
    seen = summary.exercises(report(verdict("b"), verdict("a"), verdict("b")))

    assert [(exercise.name, len(exercise.verdicts)) for exercise in seen] == [("b", 2), ("a", 1)]


def test_an_exercise_belongs_to_the_file_that_its_tests_are_named_after():
    seen = summary.by_file(report(verdict()))

    assert list(seen) == ["phase1/template_trainer.py"]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (("passed", "passed"), "passed"),
        (("passed", "unfinished"), "unfinished"),
        (("unfinished", "deadlock", "failed"), "deadlock"),
        (("passed", "missing"), "missing"),
    ],
)
def test_a_mistake_says_more_of_an_exercise_than_a_gap_and_a_gap_more_than_what_passed(
    statuses, expected
):
    seen = summary.exercises(report(*(verdict(status=status) for status in statuses)))

    assert seen[0].status == expected


def test_tests_that_stumble_over_the_same_mistake_are_one_problem():
    same = verdict(status="failed", diagnosis=SUM_NOT_MEAN)

    assert len(summary.problems(report(same, same))) == 1


def test_the_same_mistake_on_another_line_is_another_problem():
    one = verdict(status="failed", diagnosis=SUM_NOT_MEAN)
    other = verdict(status="failed", diagnosis=replace(SUM_NOT_MEAN, where="else.py:1"))

    assert len(summary.problems(report(one, other))) == 2


def test_a_missing_file_is_one_problem_of_all_its_exercises():
    gone = [verdict(name, "missing", message="no such file") for name in "abcd"]

    seen = summary.problems(report(*gone))

    assert [problem.title for problem in seen] == ["4 exercises"]


def test_a_file_that_can_not_be_loaded_is_one_problem_of_all_its_exercises():
    broken = Diagnosis("exception", (0,), "it can't be loaded", "trainer.py:9", whole_file=True)
    alike = replace(broken, ranks=(0, 1))

    seen = summary.problems(
        report(
            verdict("average_gradients", "error", diagnosis=broken),
            verdict("train_step", "error", diagnosis=alike),
        )
    )

    assert [problem.title for problem in seen] == ["average_gradients, train_step"]
    assert seen[0].sentence == ""


def test_what_is_still_to_write_is_no_problem():
    assert summary.problems(report(verdict(status="unfinished"))) == []


def test_a_test_without_a_sentence_goes_by_its_name():
    assert summary.sentence(verdict(title="")) == "average gradients"


def test_a_parameter_tells_a_test_from_its_sisters():
    one = verdict(id="phase1/trainer::test_mean[4 ranks]", title="The mean.")

    assert summary.sentence(one) == "The mean. [4 ranks]"


@pytest.mark.parametrize(
    ("message", "explanation", "expected"),
    [
        ("so it is", "so it is", ["so it is"]),
        ("deadlock: so it is", "so it is", ["deadlock: so it is"]),
        ("so", "so it is", ["so it is"]),
        ("this", "that", ["this", "that"]),
        ("", "that", ["that"]),
        ("", "", []),
    ],
)
def test_message_and_explanation_do_not_say_the_same_twice(message, explanation, expected):
    known = replace(SUM_NOT_MEAN, explanation=explanation)

    assert summary.paragraphs(verdict(message=message, diagnosis=known)) == expected


def test_the_guide_links_to_its_heading():
    section = summary.guide(verdict(diagnosis=SUM_NOT_MEAN))

    assert section.link == "phase1/GUIDELINES.md#gradient-aggregation"


def test_the_command_that_repeats_a_grade_names_the_seed():
    assert summary.repeat_command(report(command="gradsync check")) == "gradsync check --seed 7"


def test_the_hint_of_the_second_phase_is_asked_for_by_its_whole_id():
    seen = summary.exercises(report(verdict(), verdict(exercise="phase2/train")))

    assert [summary.hint_command(exercise) for exercise in seen] == [
        "gradsync hint average_gradients",
        "gradsync hint phase2/train",
    ]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(5.0, "5"), (2.5, "2.5"), (1 / 3, "0.33"), (100.0, "100"), (-0.0, "0"), (float("nan"), "0")],
)
def test_points_are_written_without_idle_zeros(number, expected):
    assert amount(number) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("\ud800", "\ufffd"),
        ("naïve 層\t✓", "naïve 層\t✓"),
    ],
)
def test_shown_text_can_not_drive_the_terminal_or_turn_itself_around(text, expected):
    assert printable(text) == expected


def test_carried_text_loses_only_what_no_file_can_hold():
    assert carriable("\x1b\x00\udcff") == "\x1b\ufffd\ufffd"


def test_indented_lines_of_a_message_are_kept_apart_from_its_prose():
    seen = blocks("it differs\n  expected  1\n    got     2\n\nso\nthere")

    assert [(block.is_code, block.text) for block in seen] == [
        (False, "it differs"),
        (True, "expected  1\n  got     2"),
        (False, "so\nthere"),
    ]
