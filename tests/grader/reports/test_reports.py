"""Functions that all reports share: arranging a report, and making text safe to show."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from report_samples import SUM_NOT_MEAN, report, verdict

from gradsync.records import Diagnosis
from gradsync.reports import summary
from gradsync.reports.text import amount, blocks, carriable, printable


def test_reports_load_without_torch():
    script = (
        "import sys; from gradsync.reports import gradebook, html, report_json, terminal;"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


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
def test_an_exercises_status_is_its_mistake_before_unfinished_before_passed(statuses, expected):
    seen = summary.exercises(report(*(verdict(status=status) for status in statuses)))

    assert seen[0].status == expected


def test_tests_with_the_same_mistake_are_one_problem():
    same = verdict(status="failed", diagnosis=SUM_NOT_MEAN)

    assert len(summary.problems(report(same, same))) == 1


def test_the_same_mistake_on_another_line_is_another_problem():
    one = verdict(status="failed", diagnosis=SUM_NOT_MEAN)
    other = verdict(status="failed", diagnosis=replace(SUM_NOT_MEAN, where="else.py:1"))

    assert len(summary.problems(report(one, other))) == 2


def test_a_mistake_without_a_line_is_that_on_a_line():
    one = verdict(status="failed", diagnosis=SUM_NOT_MEAN)
    other = verdict(status="failed", diagnosis=replace(SUM_NOT_MEAN, where=None))

    assert len(summary.problems(report(other, one))) == 1


def test_a_test_that_sees_a_symptom_belongs_to_the_mistake_that_another_one_names():
    vague = Diagnosis("does-not-learn", (0,), "the loss does not decrease", vague=True)
    symptoms = [verdict(status="failed", diagnosis=known) for known in (vague, None)]
    named = verdict(status="failed", diagnosis=SUM_NOT_MEAN)

    [problem] = summary.problems(report(*symptoms, named))

    assert problem.verdicts == (named, *symptoms)
    assert len(summary.problems(report(*symptoms))) == 2


@pytest.mark.parametrize(("line", "count"), [("trainer.py:9", 1), ("trainer.py:8", 2)])
def test_deadlocks_in_which_ranks_wait_at_the_same_line_are_one_problem(line, count):
    one = Diagnosis("deadlock-rank-missing", (1,), "Rank 0 waits at trainer.py:9.", line)
    other = Diagnosis("deadlock-order-differs", (1,), "Rank 0 is at trainer.py:9.", "trainer.py:3")
    both = [verdict(status="deadlock", diagnosis=diagnosis) for diagnosis in (one, other)]

    assert len(summary.problems(report(*both))) == count


def test_an_endless_loop_is_one_problem_wherever_it_was_stopped():
    slow = [Diagnosis("too-slow", (0,), "it did not finish", f"trainer.py:{n}") for n in (1, 2)]
    stopped = [verdict(status="timeout", diagnosis=diagnosis) for diagnosis in slow]

    assert len(summary.problems(report(*stopped))) == 1


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


def test_unfinished_exercises_are_not_problems():
    assert summary.problems(report(verdict(status="unfinished"))) == []


def test_a_test_without_a_docstring_is_shown_by_name():
    assert summary.sentence(verdict(title="")) == "average gradients"


def test_the_parameters_of_a_test_are_shown():
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
def test_message_and_explanation_are_not_repeated(message, explanation, expected):
    known = replace(SUM_NOT_MEAN, explanation=explanation)

    assert summary.paragraphs(verdict(message=message, diagnosis=known)) == expected


def test_the_guide_links_to_its_heading():
    section = summary.guide(verdict(diagnosis=SUM_NOT_MEAN))

    assert section.link == "phase1/GUIDELINES.md#gradient-aggregation"


def test_the_command_that_repeats_a_grade_names_the_seed():
    assert summary.repeat_command(report(command="gradsync check")) == "gradsync check --seed 7"


def test_the_hint_command_of_phase_2_has_the_whole_id():
    seen = summary.exercises(report(verdict(), verdict(exercise="phase2/train")))

    assert [summary.hint_command(exercise) for exercise in seen] == [
        "gradsync hint average_gradients",
        "gradsync hint phase2/train",
    ]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(5.0, "5"), (2.5, "2.5"), (1 / 3, "0.33"), (100.0, "100"), (-0.0, "0"), (float("nan"), "0")],
)
def test_points_are_written_without_trailing_zeros(number, expected):
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
def test_shown_text_has_no_control_or_bidirectional_characters(text, expected):
    assert printable(text) == expected


def test_stored_text_loses_only_characters_invalid_in_a_file():
    assert carriable("\x1b\x00\udcff") == "\x1b\ufffd\ufffd"


def test_indented_lines_of_a_message_are_kept_apart_from_its_prose():
    seen = blocks("it differs\n  expected  1\n    got     2\n\nso\nthere")

    assert [(block.is_code, block.text) for block in seen] == [
        (False, "it differs"),
        (True, "expected  1\n  got     2"),
        (False, "so\nthere"),
    ]
