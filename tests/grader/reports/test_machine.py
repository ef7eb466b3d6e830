"""The report as JSON, and a grade read back from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_samples import SUM_NOT_MEAN, report, verdict

from gradsync.records import Origin, Report
from gradsync.reports import machine, summary

ORIGIN = Origin("files", "course", sandboxed=True)


def loaded(of: Report) -> dict:
    """Return the report read by a strict parser: without NaN, as UTF-8."""

    def refuse(constant):
        raise ValueError(constant)

    return json.loads(machine.render(of).encode("utf-8"), parse_constant=refuse)


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
                "output": [],
            }
        ],
        "seed": 7,
        "notes": ["x.ipynb was ignored"],
        "status": "graded",
        "phases": {"phase1": 1.0},
        "exercises": {"phase1/average_gradients": {"points": 1.0, "max_points": 1.0}},
        "made_from": None,
    }


def test_a_grade_is_read_back_as_it_was_written():
    third = verdict(points=1 / 3)
    written = report(third, third, submission="a\ud800", origin=ORIGIN)
    grade = machine.read(machine.render(written), ORIGIN, seed=7)

    assert grade is not None
    assert grade == replace(summary.grade(written), submission="a\ufffd")


@pytest.mark.parametrize(
    ("origin", "seed"),
    [
        (Origin("other", "course", sandboxed=True), 7),
        (Origin("files", "other", sandboxed=True), 7),
        (Origin("files", "course", sandboxed=False), 7),
        (ORIGIN, 8),
    ],
)
def test_a_grade_with_another_origin_is_not_read(origin, seed):
    assert machine.read(machine.render(report(origin=ORIGIN)), origin, seed) is None


def test_json_has_the_diagnosis_with_line_and_guide():
    seen = loaded(report(verdict(status="failed", diagnosis=SUM_NOT_MEAN)))

    assert seen["tests"][0]["diagnosis"] == {
        "code": "sum-not-mean",
        "ranks": [0, 1, 2, 3],
        "explanation": "every rank has 4 times the mean",
        "where": "template_trainer.py:94",
        "guide": "Gradient aggregation",
    }


def test_json_omits_an_unknown_line_and_guide():
    unknown = replace(SUM_NOT_MEAN, where=None, guide=None)

    seen = loaded(report(verdict(status="failed", diagnosis=unknown)))

    assert set(seen["tests"][0]["diagnosis"]) == {"code", "ranks", "explanation"}


def test_json_rounds_scores_to_two_decimals():
    seen = loaded(report(verdict(points=1 / 3), verdict(points=1 / 3)))

    assert seen["score"] == 0.67


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_json_writes_nan_and_infinity_as_0(number):
    seen = loaded(report(verdict(points=number), seconds=number))

    assert (seen["score"], seen["seconds"], seen["tests"][0]["points"]) == (0.0, 0.0, 0.0)


def test_json_is_valid_utf8_for_any_message():
    seen = loaded(report(verdict(status="failed", message="π \ud800 \x00 \x1b")))

    assert seen["tests"][0]["message"] == "π \ufffd \ufffd \x1b"
