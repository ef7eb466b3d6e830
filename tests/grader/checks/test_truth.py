"""What `make truth` counts as correct, and the table that it writes into docs/figures.md."""

from dataclasses import replace
from pathlib import Path

import pytest

from checks.truth import BEGIN, END, Outcome, table, write_into
from gradsync.course.known_submissions import Right, Wrong
from gradsync.records import Diagnosis, Verdict

WRONG = Wrong("sums", "phase1/average_gradients", "sum-not-mean", "phase1/template_trainer.py", ())
RIGHT = Right("flat", {"phase1/template_trainer.py": ""})
NAMED = Verdict(
    id="phase1/trainer::test_mean",
    exercise=WRONG.exercise,
    file=WRONG.file,
    points=0.0,
    max_points=5.0,
    status="failed",
    message="summed, not divided",
    diagnosis=Diagnosis(WRONG.code, (0, 1), "summed, not divided"),
)
UNNAMED = replace(NAMED, diagnosis=None, message="not the mean")
ELSEWHERE = replace(NAMED, exercise="phase1/train_step")


@pytest.mark.parametrize(
    ("known", "first", "correct"),
    [
        pytest.param(WRONG, NAMED, True, id="named"),
        pytest.param(WRONG, UNNAMED, False, id="not named"),
        pytest.param(WRONG, ELSEWHERE, False, id="named in another exercise"),
        pytest.param(WRONG, None, False, id="not caught"),
        pytest.param(RIGHT, None, True, id="full marks"),
        pytest.param(RIGHT, NAMED, False, id="no full marks"),
    ],
)
def test_an_outcome_is_correct_if_it_is_the_expected_one(known, first, correct):
    outcome = Outcome(known, 1.0, first)

    assert outcome.correct is correct
    assert ("NOT" in outcome.line()) is not correct


def test_a_mistake_that_only_the_hidden_tests_catch_is_counted():
    outcomes = [Outcome(WRONG, 1.0, NAMED, visible=False), Outcome(WRONG, 1.0, NAMED)]

    assert outcomes[0].line().endswith("MISSED by the visible tests")
    assert "| mistakes caught by the visible tests | 1 of 2 |" in table(outcomes, 1.0)


def test_the_table_in_the_page_is_replaced(tmp_path):
    page = tmp_path / "figures.md"
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    other = replace(WRONG, exercise="phase2/ring_all_reduce")
    grades = [(WRONG, NAMED), (WRONG, UNNAMED), (WRONG, None), (RIGHT, None), (other, None)]

    write_into(page, table([Outcome(known, 1.0, first) for known, first in grades], 90.0))

    before, _, rest = page.read_text().partition(BEGIN)
    written, _, after = rest.partition(END)
    assert (before, after) == ("before\n\n", "\n\nafter\n")
    assert written.strip().splitlines() == [
        "|  | phase1 | phase2 |",
        "| --- | --- | --- |",
        "| mistakes caught | 2 of 3 | 0 of 1 |",
        "| mistakes caught by the visible tests | 3 of 3 | 1 of 1 |",
        "| expected diagnosis first | 1 of 3 | 0 of 1 |",
        "| correct answers with full marks | 1 of 1 | 0 of 0 |",
        "",
        "Grading all of these took 1.5 minutes.",
    ]


def test_the_page_of_this_course_has_a_place_for_the_table():
    page = (Path(__file__).parents[3] / "docs" / "figures.md").read_text()

    assert page.count(BEGIN) == page.count(END) == 1
    assert page.index(BEGIN) < page.index(END)


def test_a_page_without_a_place_is_unchanged_and_the_error_shows_the_table(tmp_path):
    page = tmp_path / "figures.md"
    page.write_text("nothing here\n")

    with pytest.raises(ValueError, match=r"no place for the table(.*\n)+\| a \|"):
        write_into(page, "| a |")

    assert page.read_text() == "nothing here\n"
