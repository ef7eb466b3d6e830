"""Review files: follow their programs, and apply each rule."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradsync.errors import UnusableInput
from gradsync.review.catalogue import DEFAULT
from gradsync.review.checklist import EVIDENCE
from gradsync.review.findings import Finding, Hit, Rule
from gradsync.review.flow.program import Program, programs
from gradsync.review.flow.project import Project, parse, read

_DEEPEST = 8_000  # Python's recursion limit while a script is followed


@dataclass(frozen=True, slots=True)
class Review:
    """The findings in some files, sorted by place."""

    findings: tuple[Finding, ...]
    followed: frozenset[str]  # topics of the checklist whose evidence was seen
    distributed: bool  # whether a rule applies to a program in the files
    files: tuple[str, ...]  # that were reviewed
    unreadable: tuple[tuple[Path, str], ...] = ()  # the other files, and the reasons


def review(
    paths: Iterable[Path], rules: Sequence[Rule] = DEFAULT, *, unsure: bool = False
) -> Review:
    """Review files together, because a file may call functions of another one.

    Args:
        paths: the files. Those that can't be read are listed in the result.
        rules: the rules to apply.
        unsure: report findings that are only possible mistakes, too.
    """
    sources, unreadable = [], []
    for path in paths:
        try:
            sources.append(read(path))
        except UnusableInput as error:
            unreadable.append((path, str(error)))
    found = _review(Project(sources), rules, unsure)
    return replace(found, unreadable=tuple(unreadable))


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
    followed: set[str] = set()
    distributed = False
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        for source in project.sources:
            for program in programs(project, source):
                applied = [rule for rule in rules if rule.applies(program)]
                distributed |= bool(applied)
                followed |= {topic for topic, seen in EVIDENCE.items() if seen(program)}
                for finding in (f for rule in applied for f in _findings(program, rule, unsure)):
                    key = (finding.path, finding.line, finding.column, finding.code)
                    findings.setdefault(key, finding)
    finally:
        sys.setrecursionlimit(limit)
    names = tuple(source.path for source in project.sources)
    return Review(tuple(sorted(findings.values())), frozenset(followed), distributed, names)


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
