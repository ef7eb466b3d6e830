"""result.json for Classroom 50, checked by the rules of schemas/result-v1.schema.json."""

import json
import re
from dataclasses import replace

import pytest
from export_samples import GRADED, GRADED_AT, LATE, UNSAFE, WITH_SCORE

from gradsync.class_records import ExerciseResult
from gradsync.reports.exports.classroom50 import render

REQUIRED = {
    *("schema", "classroom", "assignment", "assignment_type", "owner", "submission", "commit"),
    *("release", "review", "datetime", "score", "max-score", "tests"),
}
OPTIONAL = {"graded_at", "submitted_by"}
TIME = r"\d{4}-\d{2}-\d{2}T([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ"
RUNNER = {
    "CLASSROOM": "cs",
    "ASSIGNMENT": "ddp",
    "ASSIGNMENT_TYPE": "group",
    "OWNER": "alice",
    "SUBMISSION_TAG": "submit/2026-11-02T23-59-01Z-a1b2c3d",
    "COMMIT_URL": "https://example.org/commit/a1b2c3d",
    "RELEASE_URL": "https://example.org/releases/1",
    "REVIEW_URL": "",
}


def classroom50(text):
    """Return the content if the collector would accept it."""
    content = json.loads(text)
    assert set(content) >= REQUIRED
    assert set(content) <= REQUIRED | OPTIONAL
    assert content["schema"] == "classroom50/result/v1"
    assert content["assignment_type"] in ("individual", "group")
    texts = ("classroom", "assignment", "owner", "commit", "release", "review")
    assert all(isinstance(content[key], str) and content[key] for key in texts)
    assert content["submission"].startswith("submit/")
    assert all(re.fullmatch(TIME, content[key]) for key in ("datetime", "graded_at"))
    for part in (content, *content["tests"]):
        assert type(part["score"]) is type(part["max-score"]) is int
        assert 0 <= part["score"] <= part["max-score"]
    assert content["score"] == sum(test["score"] for test in content["tests"])
    assert content["max-score"] == sum(test["max-score"] for test in content["tests"])
    for test in content["tests"]:
        assert isinstance(test["test-name"], str)
        assert test["test-name"]
        assert type(test["passed"]) is bool
    return content


@pytest.mark.parametrize(
    "result",
    [each for each in WITH_SCORE if each.exercises],
    ids=lambda each: repr(each.submission),
)
def test_the_collector_accepts_each_result(result):
    content = classroom50(render(result, "Training, part 1", GRADED_AT))

    assert content["score"] == round(result.score)
    assert content["max-score"] == 10
    assert content["owner"] == result.submission


def test_the_runner_says_which_submission_it_is():
    content = classroom50(render(GRADED[0], "x", GRADED_AT, RUNNER))

    assert content["owner"] == "alice"
    assert content["submission"] == RUNNER["SUBMISSION_TAG"]
    assert content["review"] == content["commit"] == RUNNER["COMMIT_URL"]


def test_without_a_runner_the_names_come_from_the_course():
    content = classroom50(render(GRADED[0], "Training, part 1", GRADED_AT))

    assert content["classroom"] == content["assignment"] == "training-part-1"
    assert content["submission"] == "submit/manual-2026-11-02T23-59-01Z"


def test_fractions_of_points_never_exceed_the_possible_ones():
    exercises = tuple(ExerciseResult(f"phase1/e{n}", 4.76, 4.76) for n in range(21))
    lost = (*exercises[:20], replace(exercises[20], points=0.0))
    whole = classroom50(
        render(
            replace(GRADED[0], exercises=exercises, score=100.0, max_score=100.0), "x", GRADED_AT
        )
    )
    partial = classroom50(
        render(replace(GRADED[0], exercises=lost, score=95.2, max_score=100.0), "x", GRADED_AT)
    )

    assert (whole["score"], whole["max-score"]) == (100, 100)
    assert partial["score"] == 95
    assert partial["tests"][20]["score"] == 0


def test_lateness_is_explained_and_a_missing_sandbox_is_not():
    late = classroom50(render(LATE, "x", GRADED_AT))
    unsafe = classroom50(render(UNSAFE, "x", GRADED_AT))

    assert "1 day, 1 point" in late["tests"][0]["message"]
    assert "sandbox" not in str(unsafe)
