"""Mistakes in broadcasting a model. Values are {name: tensor}, one dict a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line
from gradsync.diagnose.values import EXACT, array, close
from gradsync.records import Diagnosis, Observation

GUIDE = "Model synchronisation"
State = Mapping[str, Any]


def broadcast_mistakes(before: Sequence[State], src: int, buffers: Sequence[str]) -> list[Rule]:
    """Return the rules, given every rank's tensors before, and which of them are buffers."""
    return [
        wrong_source(before, src),
        another_mixed_in(before, src),
        sent_as_float32,
        buffers_left_out(buffers),
        models_differ,
    ]


def wrong_source(before: Sequence[State], src: int) -> Rule:
    """All ranks agree, on a rank that was not asked for, if not in everything."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = _wrong_names(seen, expected)
        if not wrong:
            return None
        ended = [_only(wrong, value) for value in seen]
        for rank, state in enumerate(before):
            if rank != src and all(close(one, _only(wrong, state), EXACT) for one in ended):
                what = "model" if len(wrong) == len(state) else ", ".join(wrong)
                text = (
                    f"every rank ends with rank {rank}'s {what}, where `src` was {src}: broadcast "
                    "from the rank that you are told"
                )
                return Diagnosis(
                    "wrong-source", tuple(range(seen.world_size)), text, last_line(seen), GUIDE
                )
        return None

    return rule


def another_mixed_in(before: Sequence[State], src: int) -> Rule:
    """The source itself ends with a NaN that another rank had: something was added up."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        spoilt = [n for n in _wrong_names(seen, expected) if _has_nan(seen[src].get(n))]
        wrong = [name for name in spoilt if not _has_nan(before[src][name])]
        if not wrong:
            return None
        text = (
            f"rank {src}'s own {', '.join(wrong)} came to hold NaN, which another rank had there: "
            "what the other ranks had is mixed in, and 0 times NaN is NaN, too. Their values have "
            "no part in a broadcast"
        )
        return Diagnosis("models-differ", _ranks(seen, expected), text, last_line(seen), GUIDE)

    return rule


def sent_as_float32(seen: Observation, expected: Any) -> Diagnosis | None:
    """What differs is what float32 leaves of the source's."""
    wrong = _wrong_names(seen, expected)
    ranks = _ranks(seen, expected) if wrong else ()
    for name, rank in ((name, rank) for name in wrong for rank in ranks):
        whole = array(expected[rank][name])
        if whole is None or not close(seen[rank].get(name), whole.astype(np.float32), EXACT):
            return None
    if not wrong:
        return None
    text = (
        f"{', '.join(wrong)} arrived rounded, as by a journey in float32: what is broadcast is to "
        "arrive bit for bit, so every tensor has to travel in its own dtype"
    )
    return Diagnosis("models-differ", ranks, text, last_line(seen), GUIDE)


def buffers_left_out(buffers: Sequence[str]) -> Rule:
    """The parameters are right and only buffers differ."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = _wrong_names(seen, expected)
        if not wrong or not set(wrong) <= set(buffers):
            return None
        text = (
            f"the parameters are the same on every rank, but {', '.join(wrong)} "
            f"{'is' if len(wrong) == 1 else 'are'} not: buffers belong to a model too, and "
            "evaluation uses them"
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
        "rank's on every rank: ranks that start from different models never become one"
    )
    return Diagnosis("models-differ", _ranks(seen, expected), text, last_line(seen), GUIDE)


def bits_differ(seen: Observation, expected: Any) -> Diagnosis | None:
    """Numbers that compare equal are not the same bits."""
    wrong = [
        (rank, name)
        for rank, state in enumerate(expected)
        for name in state
        if _bits(seen[rank][name]) != _bits(state[name])
    ]
    if not wrong:
        return None
    names = ", ".join(dict.fromkeys(name for _, name in wrong))
    text = (
        f"{names}: equal to the source rank's in value, but not bit for bit, as where -0.0 arrives "
        "as 0.0. Nothing is to be calculated with what is broadcast, and no dtype to be changed"
    )
    ranks = tuple(sorted({rank for rank, _ in wrong}))
    return Diagnosis("models-differ", ranks, text, last_line(seen), GUIDE)


def weight_not_sent(seen: Observation, weights: Sequence[Any]) -> Diagnosis | None:
    """A rank does not end with rank 0's weight: leaving all as it is takes no broadcast.

    Args:
        seen: the run, without a `src`; of each rank its `weight` of the first layer.
        weights: by rank, the one that it began with.
    """
    ended = [value["weight"] for value in seen]
    senders = [r for r, w in enumerate(weights) if close(ended, [w] * len(ended), EXACT)]
    if 0 in senders:
        return None
    code = "wrong-source" if senders else "models-differ"
    if senders:
        found = (
            f"called without `src`, every rank ends with the first layer of rank {senders[0]}: the "
            "source is rank 0 where no other is named"
        )
    elif close(ended, ended[:1] * len(ended), EXACT):
        found = "the ranks end with the same first layer, but not with the one that rank 0 had"
    else:
        found = (
            "broadcast_model did nothing: the first layer on rank 1 still has other weights than "
            "on rank 0"
        )
    text = f"{found}. What is to stay as it was is judged once rank 0's model is broadcast"
    return Diagnosis(code, tuple(range(len(seen))), text, last_line(seen), GUIDE)


def _only(names: Sequence[str], state: State) -> State:
    return {name: state.get(name) for name in names}


def _bits(value: Any) -> tuple[str, bytes]:
    numbers = np.asarray(value)
    return str(numbers.dtype), numbers.tobytes()


def _has_nan(value: Any) -> bool:
    numbers = array(value)
    return numbers is not None and bool(np.isnan(numbers).any())


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
