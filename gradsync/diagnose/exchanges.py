"""Mistakes in what ranks send one another of their gradients, and in where they put it.

Values are {parameter name: gradient}, one dict a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line
from gradsync.diagnose.values import close
from gradsync.diagnose.vectors import common_factor, flat
from gradsync.records import Diagnosis, Observation


def one_ranks_own(local: Sequence[Any], guide: str) -> Rule:
    """Every rank has the gradients that one of them had, divided by their number perhaps."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        size = seen.world_size
        if expected is None or not 1 < size == len(local):
            return None
        for source in range(size):
            factor = common_factor(list(seen), [local[source]] * size)
            if factor is None or min(abs(factor - 1), abs(factor * size - 1)) > 1e-3:
                continue
            divided = "" if abs(factor - 1) < 1e-3 else f", only {size} times smaller"
            text = (
                f"every rank ends with the gradients that rank {source} had{divided}: the ranks "
                "agree, but what the others had is lost. A mean is made of what all of them had"
            )
            return _found("gradients-not-synchronised", seen, text, guide)
        return None

    return rule


def in_other_places(guide: str) -> Rule:
    """Every rank has the numbers of the mean, but not where they belong."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        pairs = [(flat([v]), flat([mean])) for v, mean in zip(seen, expected or (), strict=False)]
        for one, other in pairs:
            if one is None or other is None or not close(np.sort(one), np.sort(other)):
                return None
        if all(close(one, other) for one, other in pairs):
            return None
        wrong = [name for name in expected[0] if not close(seen[0].get(name), expected[0][name])]
        text = (
            "all numbers of the mean are there, but in the wrong places"
            f"{', those of ' + ', '.join(wrong) if wrong else ''}. Who puts gradients one after "
            "another into a single tensor has to take it apart in the same order"
        )
        return _found("differs-from-single-process", seen, text, guide)

    return rule


def _found(code: str, seen: Observation, text: str, guide: str) -> Diagnosis:
    ranks = tuple(range(seen.world_size))
    return Diagnosis(code, ranks, f"{text}", last_line(seen), guide)
