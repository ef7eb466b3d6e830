"""results.json for PrairieLearn, read as its documentation says."""

from dataclasses import replace

import pytest
from export_samples import FAILED, GRADED, LATE, MISSING, UNREADABLE, UNSAFE, WITH_SCORE
from platforms import prairielearn

from gradsync.reports.exports.prairielearn import render


@pytest.mark.parametrize("result", [*GRADED, LATE, UNSAFE], ids=lambda each: repr(each.submission))
def test_prairielearn_reads_the_share_of_the_points(result):
    score, tests, _ = prairielearn(render(result))

    assert score == pytest.approx(result.score / result.max_score)
    assert [test["points"] for test in tests] == [each.points for each in result.exercises]


@pytest.mark.parametrize("result", [UNREADABLE, FAILED, MISSING])
def test_a_submission_without_a_grade_costs_no_attempt(result):
    score, [error], _ = prairielearn(render(result))

    assert score is None
    assert all(note in error for note in result.notes)


def test_a_score_with_a_bonus_is_at_most_1():
    score, _, _ = prairielearn(render(replace(GRADED[0], score=11.0)))

    assert score == 1.0


def test_very_long_messages_are_cut():
    tests = tuple(replace(test, message="ü" * 2_000_000) for test in GRADED[0].tests)

    _, shown, _ = prairielearn(render(replace(GRADED[0], tests=tests)))

    assert shown[-1]["output"].endswith("(cut, because the result would be too large)")


def test_every_result_with_a_score_can_be_read():
    assert all(prairielearn(render(result)) for result in WITH_SCORE)
