"""Render results.json for Gradescope: https://gradescope-autograders.readthedocs.io/en/latest/specs.

Texts are plain, and learners see them. Of hidden tests, they contain only the messages.
"""

from __future__ import annotations

import json
from typing import Any

from gradsync.class_records import Result
from gradsync.reports.exports.lines import NO_SANDBOX, Line, lines_of, summary_of
from gradsync.reports.text import finite


def render(result: Result) -> str:
    """Return the result of one submission as JSON.

    Args:
        result: a result with a score.
    """
    content: dict[str, Any] = {
        "score": finite(result.score or 0.0),
        "output": summary_of(result),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(number, line) for number, line in enumerate(lines_of(result), 1)],
    }
    if result.seed is not None:
        content["extra_data"] = {"seed": result.seed}
    if not result.sandboxed:  # only staff see a hidden test
        content["tests"].append(_for_staff(NO_SANDBOX))
    if result.seconds is not None:
        content["execution_time"] = finite(result.seconds)
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _for_staff(text: str) -> dict[str, Any]:
    return {
        "name": "For staff",
        "score": 0.0,
        "max_score": 0.0,
        "status": "passed",
        "output": text,
        "output_format": "text",
        "visibility": "hidden",
    }


def _test(number: int, line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "number": str(number),
        "score": line.points,
        "max_score": line.max_points,
        "status": "passed" if line.status == "passed" else "failed",
        "output": line.text,
        "output_format": "text",
        "visibility": "visible",
    }
