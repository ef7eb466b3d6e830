"""Render result.json for Classroom 50, schema `classroom50/result/v1`.

https://github.com/foundation50/classroom50/wiki/Advanced-Autograding: the runner sets
environment variables that name the submission. Without a runner, the names are made from the
result, as Classroom 50 does for scores that a teacher enters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from gradsync.class_records import Result
from gradsync.reports.exports.lines import lines_of, summary_of, whole_points

SCHEMA = "classroom50/result/v1"
TIME = "%Y-%m-%dT%H:%M:%SZ"


def render(
    result: Result, title: str, graded_at: datetime, environ: Mapping[str, str] | None = None
) -> str:
    """Return the result of one submission as JSON, with integer points.

    Args:
        result: a result with a score.
        title: the title of the course; it also names the classroom and the assignment if there is
            no runner.
        graded_at: when the class was graded, with a time zone.
        environ: the runner's variables; empty values count as missing.
    """
    given = {key: value for key, value in (environ or {}).items() if value}
    lines = lines_of(result)
    most = whole_points([line.max_points for line in lines], result.max_score or 0.0)
    scores = whole_points([line.points for line in lines], result.score or 0.0, most)
    handed_in = _utc(result.handed_in or graded_at)
    submission = given.get("SUBMISSION_TAG", f"submit/manual-{handed_in.replace(':', '-')}")
    commit = given.get("COMMIT_URL", submission)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "classroom": given.get("CLASSROOM", _slug(title)),
        "assignment": given.get("ASSIGNMENT", _slug(title)),
        "assignment_type": given.get("ASSIGNMENT_TYPE", "individual"),
        "owner": given.get("OWNER") or given.get("USERNAME") or result.submission,
        "submission": submission,
        "commit": commit,
        "release": given.get("RELEASE_URL", submission),
        "review": given.get("REVIEW_URL", commit),
        "datetime": handed_in,
        "graded_at": _utc(graded_at),
        "score": sum(scores),
        "max-score": sum(most),
        "tests": [
            {
                "test-name": line.name,
                "passed": line.status == "passed",
                "score": score,
                "max-score": possible,
                "output": line.text,
            }
            for line, score, possible in zip(lines, scores, most, strict=True)
        ],
    }
    if content["tests"] and (summary := summary_of(result)):
        content["tests"][0]["message"] = summary  # only a test may have further fields
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _utc(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime(TIME)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "course"
