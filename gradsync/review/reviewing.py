"""Review files: follow their programs, and apply each rule."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradsync.review.catalogue import DEFAULT
from gradsync.review.findings import Finding, Hit, Rule
from gradsync.review.flow.program import Program, programs
from gradsync.review.flow.project import Project, parse, read

_DEEPEST = 8_000  # Python's recursion limit while a script is followed


@dataclass(frozen=True, slots=True)
class Review:
    """The findings in some files, sorted by place, and the rules that apply to these files."""

    findings: tuple[Finding, ...]
    applied: frozenset[str]  # codes of the rules that apply to a program in the files
    files: tuple[str, ...]


def review(
    paths: Iterable[Path], rules: Sequence[Rule] = DEFAULT, *, unsure: bool = False
) -> Review:
    """Review files together, because a file may call functions of another one.

    Raises:
        UnusableInput: if a file can't be read, or is not Python code.
    """
    return _review(Project([read(path) for path in paths]), rules, unsure)


def review_text(
    text: str, path: str, rules: Sequence[Rule] = DEFAULT, *, unsure: bool = False
) -> Review:
    """Review the text of a file; `path` is its name in the findings.

    Raises:
        UnusableInput: if it is not Python code.
    """
    return _review(Project([parse(path, text)]), rules, unsure)


def _review(project: Project, rules: Sequence[Rule], unsure: bool) -> Review:
    findings: dict[tuple[str, int, int, str], Finding] = {}
    applied: set[str] = set()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        for source in project.sources:
            for program in programs(project, source):
                for rule in rules:
                    if rule.applies(program):
                        applied.add(rule.code)
                        for finding in _findings(program, rule, unsure):
                            key = (finding.path, finding.line, finding.column, finding.code)
                            findings.setdefault(key, finding)
    finally:
        sys.setrecursionlimit(limit)
    names = tuple(source.path for source in project.sources)
    return Review(tuple(sorted(findings.values())), frozenset(applied), names)


def _findings(program: Program, rule: Rule, unsure: bool) -> Iterator[Finding]:
    for hit in rule.find(program):
        if (hit.sure or unsure) and not _ignored(hit, rule.code):
            node, source = hit.node, hit.source
            line = getattr(node, "lineno", 1)
            last = getattr(node, "end_lineno", None) or line
            yield Finding(
                path=source.path,
                line=line,
                column=source.column(line, getattr(node, "col_offset", 0)),
                code=rule.code,
                reason=hit.reason,
                remedy=hit.remedy or rule.remedy,
                end_line=last,
                end_column=source.column(last, getattr(node, "end_col_offset", None) or 0),
                function=hit.function,
            )


def _ignored(hit: Hit, code: str) -> bool:
    """Return whether a comment on one of the lines of a hit ignores the rule."""
    first = getattr(hit.node, "lineno", 1)
    last = getattr(hit.node, "end_lineno", first) or first
    last = min(last, first + 20)
    ignored = hit.source.ignored
    return any({code, ""} & ignored.get(line, frozenset()) for line in range(first, last + 1))
