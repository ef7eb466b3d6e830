"""Mistakes in which ranks' gradients are averaged, and in where the mean is written.

Values are {parameter name: gradient}, one dict per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text, verb
from support.rules.vectors import common_factor, flat
from support.rules.wrong_results import last_line

MANY = 6  # ranks: they have 62 subsets to try, and each further rank doubles the number


def one_ranks_own(local: Sequence[Any], guide: str) -> Rule:
    """Return the rule for ranks that all have the gradients of one rank, perhaps divided by N."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        size = seen.world_size
        if expected is None or not 1 < size == len(local):
            return None
        for source in range(size):
            factor = common_factor(list(seen), [local[source]] * size)
            if factor is None or min(abs(factor - 1), abs(factor * size - 1)) > 1e-3:
                continue
            divided = "" if abs(factor - 1) < 1e-3 else f", divided by {size}"
            text = (
                f"Every rank ends with the gradients of rank {source}{divided}. The ranks agree, "
                "but the gradients of the other ranks are lost. Compute the mean of the gradients "
                "of all ranks."
            )
            return _found("gradients-not-synchronised", seen, text, guide)
        return None

    return rule


def over_a_part(local: Sequence[Any], guide: str) -> Rule:
    """Return the rule for ranks that have the sum or the mean over only some of the ranks."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not 2 < seen.world_size == len(local) <= MANY:
            return None
        parts = [_part_behind(value, local) for value in seen]
        if not all(parts) or max(map(len, parts)) < 2:
            return None
        groups = {c.members for rank in range(len(parts)) for c in seen.collectives(rank)}
        smaller = [members for members in sorted(groups) if len(members) < len(parts)]
        made = f", in a process group of only {ranks_text(smaller[0])}" if smaller else ""
        text = (
            f"The ranks add up the gradients of only some of the {len(parts)} ranks{made}. "
            f"{_ended(parts)}. The mean must be over all ranks. Use the default process group, "
            "without a `group` argument, on every rank."
        )
        return _found("gradients-not-synchronised", seen, text, guide)

    return rule


def _ended(parts: Sequence[tuple[int, ...]]) -> str:
    """Return "Ranks 0 and 1 end with the gradients of ranks 0 and 1; rank 2 ends with ..."."""
    texts = []
    for part in dict.fromkeys(parts):
        ranks = [rank for rank, own in enumerate(parts) if own == part]
        ends = verb(ranks, "ends", "end")
        texts.append(f"{ranks_text(ranks)} {ends} with the gradients of {ranks_text(part)}")
    return "; ".join(texts).capitalize()


def _part_behind(value: Any, local: Sequence[Any]) -> tuple[int, ...]:
    """Return a part of the ranks whose sum or mean this value is; () if there is none."""
    size = len(local)
    for count in range(1, size):
        for part in combinations(range(size), count):
            total = {name: sum(local[rank][name] for rank in part) for name in local[0]}
            factor = common_factor([value], [total])
            if factor is not None and any(abs(factor * n - 1) < 1e-3 for n in (1, count, size)):
                return part
    return ()


def in_other_places(guide: str) -> Rule:
    """Return the rule for ranks that have all numbers of the mean, but in the wrong places."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        pairs = [(flat([v]), flat([mean])) for v, mean in zip(seen, expected or (), strict=False)]
        for one, other in pairs:
            if one is None or other is None or not close(np.sort(one), np.sort(other)):
                return None
        if all(close(one, other) for one, other in pairs):
            return None
        wrong = [name for name in expected[0] if not close(seen[0].get(name), expected[0][name])]
        places = f" (in the gradients of {listed(wrong)})" if wrong else ""
        text = (
            f"Every rank has all numbers of the mean, but in the wrong places{places}. If you "
            "concatenate gradients into one tensor, split it again in the same order."
        )
        return _found("differs-from-single-process", seen, text, guide)

    return rule


def _found(code: str, seen: Observation, text: str, guide: str) -> Diagnosis:
    ranks = tuple(range(seen.world_size))
    return Diagnosis(code, ranks, text, last_line(seen), guide)
