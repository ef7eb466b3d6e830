"""The checklist: the practices that are followed, broken, or not applicable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gradsync.review.findings import Rule
from gradsync.review.reviewing import Review


@dataclass(frozen=True, slots=True)
class Line:
    """One practice, and whether the files follow it."""

    topic: str  # "each epoch has a new order"
    state: Literal["fine", "found", "not applicable"]
    codes: tuple[str, ...]  # of the findings


def checklist(review: Review, rules: Iterable[Rule]) -> Sequence[Line]:
    """Return a line for each topic of the rules, in the order of their codes."""
    topics: dict[str, list[str]] = {}
    for rule in rules:
        topics.setdefault(rule.topic, []).append(rule.code)
    return [_line(topic, codes, review) for topic, codes in topics.items()]


def _line(topic: str, codes: list[str], review: Review) -> Line:
    found = tuple(sorted({f.code for f in review.findings if f.code in codes}))
    if found:
        return Line(topic, "found", found)
    return Line(topic, "fine" if review.applied & set(codes) else "not applicable", ())
