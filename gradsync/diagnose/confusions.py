"""Mistakes known by their result: the value that one makes, worked out beside the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.differences import told_difference
from gradsync.diagnose.values import ROUNDINGS, close
from gradsync.records import Diagnosis, Observation


def would_be(
    wrong: Sequence[Any],
    code: str,
    explanation: str,
    guide: str,
    roundings: float = ROUNDINGS,
) -> Rule:
    """Return the rule that recognises a mistake by what each rank would end with.

    Args:
        wrong: by rank, the value that this mistake makes.
        code: of the mistake.
        explanation: what it is and what shows it, in a learner's words.
        guide: the heading of GUIDELINES.md to read.
        roundings: see `gradsync.diagnose.values`.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not close(list(seen), list(wrong), roundings):
            return None
        text = f"{explanation}"
        return Diagnosis(code, tuple(range(seen.world_size)), text, last_line(seen), guide)

    return rule


def differs_from_one_process(guide: str, case: str) -> Rule:
    """Say that the weights differ and no more, where no known mistake makes such weights."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        text = (
            f"{case}: the weights are not those of one process that takes all the samples"
            f"{told_difference(list(seen), expected)}"
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("differs-from-single-process", ranks, text, last_line(seen), guide)

    return rule


def last_line(seen: Observation) -> str | None:
    """Return the user's line that entered the last collective."""
    lines = [e.collective.where for e in seen.events if e.collective is not None]
    return lines[-1] if lines else None
