"""The JSON for GitHub's autograding reporter, read as the reporter's program does."""

import base64
import json

import pytest
from export_samples import GRADED, LATE, UNREADABLE, WITH_SCORE

from gradsync.reports.exports.actions import render


def reporter(text):
    """Return (points, possible points), as the reporter sends them to GitHub Classroom."""
    results = json.loads(base64.b64decode(base64.b64encode(text.encode())))
    assert results["status"] in ("pass", "fail", "error")
    for test in results["tests"]:
        assert test["status"] in ("pass", "fail", "error")
        assert isinstance(test["name"], str)
        assert isinstance(test["message"], str)
        assert isinstance(test["score"], int)
    return sum(test["score"] for test in results["tests"]), results["max_score"]


@pytest.mark.parametrize("result", WITH_SCORE, ids=lambda result: repr(result.submission))
def test_the_reporter_adds_up_the_rounded_score(result):
    assert reporter(render(result)) == (round(result.score), round(result.max_score))


def test_a_deadlock_is_an_error_and_a_wrong_value_a_failure():
    statuses = [test["status"] for test in json.loads(render(GRADED[0]))["tests"]]

    assert statuses == ["pass", "fail", "error"]


def test_points_lost_by_lateness_are_missing_in_the_sum():
    assert reporter(render(LATE)) == (6, 10)


def test_an_unreadable_submission_has_no_tests():
    assert reporter(render(UNREADABLE)) == (0, 10)
