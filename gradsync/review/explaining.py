"""Add a review's findings to the failed tests of the same exercise."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradsync.records import Report, Verdict
from gradsync.review.catalogue import RULES
from gradsync.review.findings import Finding
from gradsync.review.reviewing import review

_TITLES = {rule.code: rule.title for rule in RULES}
_NOT_WRONG = ("passed", "unfinished", "missing")


def explained(report: Report, root: Path) -> Report:
    """Return the report, with the findings in an exercise's code added to its failed tests.

    Args:
        report: the results of tests on the files below `root`.
        root: the folder to which a verdict's file is relative.
    """
    wrong = {v.file for v in report.verdicts if v.status not in _NOT_WRONG}
    found = {file: _findings(root / file) for file in wrong}
    if not any(found.values()):
        return report
    exercises = {_name(verdict) for verdict in report.verdicts}
    verdicts = [_explained(v, root, found.get(v.file, ()), exercises) for v in report.verdicts]
    return replace(report, verdicts=tuple(verdicts))


def _findings(path: Path) -> Sequence[Finding]:
    found = review([path], RULES, unsure=True).findings  # a failed test reports unreadable files
    return [finding for finding in found if finding.path == str(path)]


def _name(verdict: Verdict) -> str:
    return verdict.exercise.rpartition("/")[2]


def _explained(
    verdict: Verdict, root: Path, findings: Sequence[Finding], exercises: set[str]
) -> Verdict:
    if verdict.status in _NOT_WRONG or not findings:
        return verdict
    text = (root / verdict.file).read_text(encoding="utf-8")
    lines = _lines_of(text, _name(verdict), exercises)
    shown = [
        f"{verdict.file}:{f.line} {f.code} {_TITLES[f.code]}" for f in findings if f.line in lines
    ]
    return replace(verdict, review=tuple(dict.fromkeys(shown)))


def _lines_of(text: str, name: str, others: set[str]) -> set[int]:
    """Return the lines of a definition, and of the helpers that it calls in its file.

    Args:
        text: the file.
        name: the name of a function or class.
        others: definitions that are not helpers.
    """
    definitions = {
        node.name: node
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    lines: set[int] = set()
    pending, seen = [name], set()
    while pending:
        node = definitions.get(pending.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        pending += names - others
    return lines
