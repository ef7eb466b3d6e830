"""results.json for Gradescope, read as its specification says."""

import json
from dataclasses import replace

import pytest
from export_samples import CORRECTED, GRADED, LATE, UNREADABLE, UNSAFE, WITH_SCORE
from platforms import gradescope

from gradsync.reports.exports.gradescope import render


@pytest.mark.parametrize("result", WITH_SCORE, ids=lambda result: repr(result.submission))
def test_gradescope_reads_the_score_of_each_result(result):
    score, tests, _ = gradescope(render(result))

    assert score == result.score
    tests = [test for test in tests if test["visibility"] == "visible"]
    assert [test["score"] for test in tests] == [each.points for each in result.exercises]


def test_a_test_says_why_points_are_missing():
    _, [right, wrong, stuck], _ = gradescope(render(GRADED[0]))

    assert (right["status"], right["output"]) == ("passed", "")
    assert (wrong["name"], wrong["status"]) == ("phase1: evaluate", "failed")
    assert wrong["output"].startswith("Rank 0: 3 < 4 & 5.")
    assert stuck["output"] == "Rank 1 waits.\nAt a.py:3."


def test_control_characters_do_not_reach_gradescope():
    assert "\\u001b" not in render(GRADED[0])
    assert "\\u0000" not in render(GRADED[0])


def test_lateness_lowers_the_score_and_is_explained():
    score, tests, output = gradescope(render(LATE))

    assert score == 6.33
    assert sum(test["score"] for test in tests) == pytest.approx(7.33)
    assert "Points lost by lateness: 1 day, 1 point." in output


def test_an_override_is_explained():
    _, [_, _, ring], _ = gradescope(render(CORRECTED))

    assert ring["score"] == 1.67
    assert ring["output"].startswith("Prof. Ö set the points to 1.67: the ring is right.")


def test_an_unreadable_submission_gets_0_and_the_reason():
    score, tests, output = gradescope(render(UNREADABLE))

    assert (score, tests) == (0, [])
    assert "Nothing could be graded" in output
    assert "It is not a zip." in output


def test_only_staff_read_what_is_not_guaranteed_without_a_sandbox():
    _, [*others, staff], output = gradescope(render(UNSAFE))

    assert staff["visibility"] == "hidden"
    assert "it could read all files of this container" in staff["output"]
    assert "sandbox" not in output + "".join(test["output"] for test in others)


def test_the_seed_is_in_the_results():
    assert json.loads(render(replace(GRADED[0], seed=12)))["extra_data"] == {"seed": 12}
