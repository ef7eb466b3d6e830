"""Mistakes in what ranks send one another of their gradients, and in where they put it.

Values are {parameter name: gradient}, one dict a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line
from gradsync.diagnose.values import close
from gradsync.diagnose.vectors import common_factor, flat
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

MANY = 6  # ranks, which have 62 parts; there are twice as many for each further one


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


def over_a_part(local: Sequence[Any], guide: str) -> Rule:
    """Every rank has the sum or the mean over a part of the ranks, which is perhaps its own."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not 2 < seen.world_size == len(local) <= MANY:
            return None
        parts = [_part_behind(value, local) for value in seen]
        if not all(parts) or max(map(len, parts)) < 2:
            return None
        ended = "; ".join(
            f"{ranks_text([r for r, own in enumerate(parts) if own == part])}: "
            f"the gradients of {ranks_text(part)}"
            for part in dict.fromkeys(parts)
        )
        groups = {c.members for rank in range(len(parts)) for c in seen.collectives(rank)}
        smaller = [members for members in sorted(groups) if len(members) < len(parts)]
        made = f", in a process group of {ranks_text(smaller[0])} alone" if smaller else ""
        text = (
            f"the ranks add up the gradients of only a part of the {len(parts)} ranks{made}. Each "
            f"ends with: {ended}. All ranks take part in the mean: use the default process group, "
            "without `group`, on every rank"
        )
        return _found("gradients-not-synchronised", seen, text, guide)

    return rule


def _part_behind(value: Any, local: Sequence[Any]) -> tuple[int, ...]:
    """Return the ranks, not all, whose gradients' sum or mean it is; () where there are none."""
    size = len(local)
    for count in range(1, size):
        for part in combinations(range(size), count):
            total = {name: sum(local[rank][name] for rank in part) for name in local[0]}
            factor = common_factor([value], [total])
            if factor is not None and any(abs(factor * n - 1) < 1e-3 for n in (1, count, size)):
                return part
    return ()


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
