"""Render a result for GitHub Classroom's autograding reporter.

The step of a workflow that grades sets its output `result` to this JSON in base64; the reporter,
https://github.com/classroom-resources/autograding-grading-reporter, reads it. It adds up the
scores of the tests, and shows them unchanged, so they are integers.
"""

from __future__ import annotations

import json
from typing import Any

from gradsync.class_records import Result
from gradsync.reports.exports.lines import LineStatus, lines_of, summary_of, whole_points

STATUS: dict[LineStatus, str] = {"passed": "pass", "failed": "fail", "error": "error"}


def render(result: Result) -> str:
    """Return the result of one submission as JSON.

    Args:
        result: a result with a score.
    """
    lines = lines_of(result)
    scores = whole_points([line.points for line in lines], result.score or 0.0)
    all_passed = bool(lines) and all(line.status == "passed" for line in lines)
    tests: list[dict[str, Any]] = [
        {
            "name": line.name,
            "status": STATUS[line.status],
            "score": score,
            "message": line.text,
            "test_code": "",
            "filename": "",
            "line_no": 0,
            "execution_time": 0,
        }
        for line, score in zip(lines, scores, strict=True)
    ]
    content = {
        "version": 1,
        "status": "pass" if all_passed else "fail",
        "max_score": round(result.max_score or 0.0),
        "tests": tests,
        "message": summary_of(result),
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
