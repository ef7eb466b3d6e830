"""The report in a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import SCRIPT, SUM_NOT_MEAN, report, verdict
from rich.text import Text

from gradsync.reports import terminal


def line_with(words: str, text: str) -> str:
    return next(line for line in text.split("\n") if words in line)


def test_the_header_names_submission_score_seed_and_time():
    seen = terminal.render(report(verdict(), verdict(status="failed")))

    assert seen.split("\n")[0] == "ada  1 of 2 points  ·  seed 7  ·  3.2 s"


@pytest.mark.parametrize(
    ("status", "mark"), [("passed", "✓"), ("unfinished", "○"), ("failed", "✗"), ("deadlock", "✗")]
)
def test_an_exercise_has_a_mark_of_its_status(status, mark):
    seen = terminal.render(report(verdict("evaluate", status)))

    assert line_with("evaluate", seen).split()[0] == mark


def test_a_problem_shows_code_ranks_line_and_guide():
    seen = terminal.render(report(verdict(status="failed", diagnosis=SUM_NOT_MEAN)))

    assert seen.count("every rank has 4 times the mean") == 1
    assert line_with("ranks", seen).split() == ["ranks", "0-3"]
    assert line_with("line ", seen).split() == ["line", "template_trainer.py:94"]
    assert "read     phase1/GUIDELINES.md, “Gradient aggregation”" in seen
    assert line_with("average_gradients", seen).split() == [
        "✗",
        "average_gradients",
        "0",
        "/",
        "1",
        "sum-not-mean",
    ]


def test_a_problem_of_several_tests_is_shown_once():
    same = verdict(status="failed", message="it is wrong", diagnosis=SUM_NOT_MEAN)

    seen = terminal.render(report(same, same, same))

    assert seen.count("it is wrong") == 1
    assert "also     in 2 more tests" in seen


@pytest.mark.parametrize(("exercise", "later"), [("average_gradients", 1), ("evaluate", 0)])
def test_another_mistake_of_an_exercise_is_perhaps_a_consequence(exercise, later):
    other = replace(SUM_NOT_MEAN, code="exception")

    seen = terminal.render(
        report(
            verdict(status="failed", diagnosis=SUM_NOT_MEAN),
            verdict(exercise, status="error", diagnosis=other),
        )
    )

    assert seen.count("correct that one first") == later


def test_unfinished_exercises_are_one_list_with_the_first_to_write():
    seen = terminal.render(report(verdict("b", "unfinished"), verdict("a", "unfinished")))

    assert "2 still to write\n    b, a\n    Begin with b: gradsync hint b\n" in seen


def test_full_marks_show_no_problems():
    seen = terminal.render(report(verdict()))

    assert "✗" not in seen
    assert "still to write" not in seen


def test_notes_are_shown():
    assert "note: x.ipynb was ignored" in terminal.render(report(notes=("x.ipynb was ignored",)))


def test_an_unreadable_submission_has_no_table():
    unreadable = report(verdict(status="missing"), notes=("unreadable: not a zip archive",))

    seen = terminal.render(unreadable)

    assert "Nothing could be read, so nothing was graded." in seen
    assert "average_gradients" not in seen


def test_a_long_message_is_cut_and_the_remaining_characters_counted():
    seen = terminal.render(report(verdict(status="error", message="x" * 5000)))

    assert seen.count("x") < 2000
    assert "… and 3,800 more characters in report.html" in seen


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_terminal(width):
    long = verdict(status="failed", message="word " * 99 + "x" * 300, diagnosis=SUM_NOT_MEAN)

    seen = terminal.render(report(long, submission="n" * 150), width=width)

    assert max(map(len, seen.split("\n"))) <= width


def test_colour_changes_nothing_but_the_colour():
    of = report(verdict(), verdict(status="failed", diagnosis=SUM_NOT_MEAN))

    coloured = terminal.render(of, color=True)

    assert "\x1b[" in coloured
    assert Text.from_ansi(coloured).plain.split() == terminal.render(of).split()


def test_control_characters_in_a_message_are_removed():
    hostile = verdict(status="failed", message="\x1b[2J\x1b]0;owned\x07", title="\x9b2J")

    assert "\x1b" not in terminal.render(report(hostile, submission="\x1b[2J", notes=("\x1b",)))


def test_markup_in_a_message_is_only_text():
    hostile = verdict(status="failed", message=f"[bold]{SCRIPT}[/nonsense] :smile:")

    assert f"[bold]{SCRIPT}[/nonsense] :smile:" in terminal.render(report(hostile))
