"""Findings as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from gradsync.review.catalogue import page
from gradsync.review.findings import Finding, Rule
from gradsync.review.reviewing import Review

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def render(review: Review, rules: Iterable[Rule], version: str) -> str:
    """Return a SARIF log with one run. `version` is gradsync's."""
    driver = {
        "name": "gradsync review",
        "version": version,
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding) for finding in review.findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.title},
        "help": {
            "text": f"{rule.remedy} `gradsync review --explain {rule.code}` shows an example.",
            "markdown": page(rule.code),
        },
        "defaultConfiguration": {"level": "warning"},
    }


def _result(finding: Finding) -> dict[str, Any]:
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": max(finding.end_line, finding.line),
    }
    if finding.end_column:
        region["endColumn"] = finding.end_column
    location = {
        "artifactLocation": {"uri": quote(PurePath(finding.path).as_posix())},
        "region": region,
    }
    return {
        "ruleId": finding.code,
        "level": "warning",
        "message": {"text": finding.text},
        "locations": [{"physicalLocation": location}],
    }
