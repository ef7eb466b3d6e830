"""Mistakes in broadcasting a model. Values are {name: tensor}, one dict a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line
from gradsync.diagnose.values import EXACT, close
from gradsync.records import Diagnosis, Observation

GUIDE = "Model synchronisation"
State = Mapping[str, Any]


def broadcast_mistakes(before: Sequence[State], src: int, buffers: Sequence[str]) -> list[Rule]:
    """Return the rules, given every rank's tensors before, and which of them are buffers."""
    return [
        wrong_source(before, src),
        buffers_left_out(buffers),
        models_differ,
    ]


def wrong_source(before: Sequence[State], src: int) -> Rule:
    """All ranks agree, on a rank that was not asked for."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        for rank, state in enumerate(before):
            if rank != src and all(close(value, state, EXACT) for value in seen):
                text = (
                    f"every rank ends with rank {rank}'s model, where `src` was {src}: broadcast "
                    f"from the rank that you are told (GUIDELINES, {GUIDE})"
                )
                return Diagnosis(
                    "wrong-source", tuple(range(seen.world_size)), text, last_line(seen), GUIDE
                )
        return None

    return rule


def buffers_left_out(buffers: Sequence[str]) -> Rule:
    """The parameters are right and only buffers differ."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = _wrong_names(seen, expected)
        if not wrong or not set(wrong) <= set(buffers):
            return None
        text = (
            f"the parameters are the same on every rank, but {', '.join(wrong)} "
            f"{'is' if len(wrong) == 1 else 'are'} not: buffers belong to a model too, and "
            f"evaluation uses them (GUIDELINES, {GUIDE})"
        )
        return Diagnosis(
            "buffers-not-broadcast", _ranks(seen, expected), text, last_line(seen), GUIDE
        )

    return rule


def models_differ(seen: Observation, expected: Any) -> Diagnosis | None:
    """Anything else that is not the source's, bit for bit."""
    wrong = _wrong_names(seen, expected)
    if not wrong:
        return None
    text = (
        f"{', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} not bit for bit the source "
        "rank's on every rank: ranks that start from different models never become one "
        f"(GUIDELINES, {GUIDE})"
    )
    return Diagnosis("models-differ", _ranks(seen, expected), text, last_line(seen), GUIDE)


def _wrong_names(seen: Observation, expected: Any) -> list[str]:
    if expected is None or not all(isinstance(value, Mapping) for value in seen):
        return []
    return [
        name
        for name in expected[0]
        if any(not close(seen[r].get(name), e[name], EXACT) for r, e in enumerate(expected))
    ]


def _ranks(seen: Observation, expected: Any) -> tuple[int, ...]:
    return tuple(r for r, e in enumerate(expected) if not close(seen[r], e, EXACT))
