"""Rules that recognise a mistake by its result, which is computed like the right result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule
from gradsync.testing.values import ROUNDINGS, close

# In these mistakes something is missing: the last collective's line is not the line to change.
WITHOUT_LINE = (
    "differs-from-single-process",
    "does-not-learn",
    "gradients-not-synchronised",
    "gradients-not-zeroed",
    "loss-is-local",
    "mean-of-means",
    "microbatch-mean-unweighted",
)


def ends_with(
    wrong: Sequence[Any],
    code: str,
    explanation: str,
    guide: str,
    roundings: float = ROUNDINGS,
    line: str | None = None,
) -> Rule:
    """Return the rule that recognises a mistake by the final values of the ranks.

    Args:
        wrong: by rank, the value that this mistake leads to.
        code: the code of the mistake.
        explanation: the message: what happened, what was expected, and what to do next.
        guide: the heading of GUIDELINES.md to read.
        roundings: see `gradsync.testing.values`.
        line: the line with the mistake, if it is known; by default the last collective's line.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not close(list(seen), list(wrong), roundings):
            return None
        where = line or (None if code in WITHOUT_LINE else last_line(seen))
        return Diagnosis(code, tuple(range(seen.world_size)), explanation, where, guide)

    return rule


def differs_from_one_process(guide: str, case: str) -> Rule:
    """Return the rule that reports weights that differ for an unknown reason."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        text = (
            "The weights differ from the weights of one process that trains on all samples "
            f"({case}){describe_difference(list(seen), expected)}. Check each part of a step: "
            "clear the gradients, forward, loss, backward, update. Nothing else may change "
            "the gradients or the weights, as clipping and weight decay do."
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("differs-from-single-process", ranks, text, guide=guide, vague=True)

    return rule


def last_line(seen: Observation) -> str | None:
    """Return the line of the user's code that entered the last collective."""
    lines = [e.collective.where for e in seen.events if e.collective is not None]
    return lines[-1] if lines else None
