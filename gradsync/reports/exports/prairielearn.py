"""Render results.json for PrairieLearn's external grading.

https://prairielearn.readthedocs.io/en/latest/externalGrading
"""

from __future__ import annotations

import json
from typing import Any

from gradsync.class_records import Result
from gradsync.reports.exports.lines import lines_of, summary_of

MAX_BYTES = 1_000_000  # a larger file is refused
LIMITS = (100_000, 10_000, 1000, 100)  # characters of a text, tried in this order
CUT = "\n... (cut, because the result would be too large)"


def render(result: Result) -> str:
    """Return the result of one submission as JSON of at most 1 MB.

    A submission that can't be read, or that the grader failed on, is not gradable: it does
    not use up one of the learner's attempts.
    """
    for limit in LIMITS:
        text = json.dumps(_content(result, limit), ensure_ascii=False, allow_nan=False) + "\n"
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def _content(result: Result, limit: int) -> dict[str, Any]:
    if result.status != "graded" or not result.max_score:
        return {"gradable": False, "format_errors": [_cut(summary_of(result), limit)]}
    share = (result.score or 0.0) / result.max_score
    return {
        "gradable": True,
        "score": round(min(max(share, 0.0), 1.0), 6),
        "output": _cut(summary_of(result), limit),
        "tests": [
            {
                "name": line.name,
                "points": line.points,
                "max_points": line.max_points,
                "message": "Passed." if line.status == "passed" else "",
                "output": _cut(line.text, limit),
            }
            for line in lines_of(result)
        ],
    }


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + CUT
