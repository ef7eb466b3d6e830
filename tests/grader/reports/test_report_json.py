"""The report as JSON, and read back whole."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from report_samples import SUM_NOT_MEAN, deadlock, report, verdict

from gradsync.records import Origin, Printed, Report
from gradsync.reports import html
from gradsync.reports.report_json import UnreadableReportError, decode, encode

WHOLE = report(
    verdict(
        status="deadlock",
        points=1 / 3,
        diagnosis=SUM_NOT_MEAN,
        events=deadlock(),
        world_size=4,
        output=(Printed((0, 1), ("a line",), 3),),
        review=("a.py:3 DDP001 text",),
    ),
    verdict(points=1 / 3),
    notes=("x.ipynb was ignored",),
    origins=(Origin("phase1", "files", "course", sandboxed=True),),
    graded_at=datetime(2026, 11, 2, 14, 5, tzinfo=timezone.utc),
)


def loaded(of: Report) -> Any:
    """Return the report read by a strict parser: without NaN, as UTF-8."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(encode(of).decode("utf-8"), parse_constant=refuse)


def test_a_report_and_its_page_are_the_same_after_reading():
    assert decode(encode(WHOLE)) == WHOLE
    assert html.render(decode(encode(WHOLE))) == html.render(WHOLE)


def test_json_has_the_contracts_keys():
    seen = loaded(report(verdict(status="failed", diagnosis=SUM_NOT_MEAN), verdict()))
    test, passed = seen["tests"]

    assert (seen["submission"], seen["score"], seen["max_score"]) == ("ada", 1.0, 2.0)
    assert (seen["seconds"], seen["seed"], seen["status"]) == (3.2, 7, "graded")
    assert test["id"] == "phase1/trainer::test_average_gradients"
    assert test["exercise"] == "phase1/average_gradients"
    assert (test["points"], test["max_points"], test["status"]) == (0.0, 1.0, "failed")
    assert test["message"] == "average_gradients went wrong"
    assert test["diagnosis"] == {
        "code": "sum-not-mean",
        "ranks": [0, 1, 2, 3],
        "explanation": "every rank has 4 times the mean",
        "where": "template_trainer.py:94",
        "guide": "Gradient aggregation",
        "whole_file": False,
        "vague": False,
    }
    assert passed["diagnosis"] is None


def test_json_rounds_sums_to_two_decimals():
    seen = loaded(report(verdict(points=1 / 3), verdict(points=1 / 3)))

    assert (seen["score"], seen["phases"]) == (0.67, {"phase1": 0.67})
    assert seen["exercises"] == {"phase1/average_gradients": {"points": 0.67, "max_points": 2.0}}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_json_writes_nan_and_infinity_as_0(number):
    seen = loaded(report(verdict(points=number), seconds=number))

    assert (seen["score"], seen["seconds"], seen["tests"][0]["points"]) == (0.0, 0.0, 0.0)


def test_json_is_valid_utf8_for_any_message():
    seen = loaded(report(verdict(status="failed", message="π \ud800 \x00 \x1b")))

    assert seen["tests"][0]["message"] == "π \ufffd \ufffd \x1b"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        encode(WHOLE)[:-20],
        encode(WHOLE).replace(b'"deadlock"', b'"splendid"'),
        encode(WHOLE).replace(b'"seed": 7', b'"seed": "7"'),
        encode(WHOLE).replace(b'"seconds": 3.2', b'"seconds": ' + b"9" * 400),
        encode(replace(WHOLE, verdicts=())).replace(b'"tests": [\n\n]', b'"tests": [{"id": "x"}]'),
    ],
)
def test_what_is_no_whole_report_of_this_version_is_refused(content):
    with pytest.raises(UnreadableReportError):
        decode(content)
