"""Mistakes in broadcasting a model. A value is a dict {name: tensor} for each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import EXACT, array, close
from gradsync.text import listed, ranks_text, verb
from support.rules.wrong_results import last_line

GUIDE = "Model synchronisation"
State = Mapping[str, Any]


def broadcast_mistakes(before: Sequence[State], src: int, buffers: Sequence[str]) -> list[Rule]:
    """Return the rules, given each rank's tensors before the call and the names of the buffers."""
    return [
        kept_their_own(before, src),
        wrong_source(before, src),
        averaged(before),
        other_ranks_mixed_in(before, src),
        sent_as_float32,
        buffers_left_out(buffers),
        copies_received(before),
        models_differ,
    ]


def kept_their_own(before: Sequence[State], src: int) -> Rule:
    """Recognise that the call changed no model on any rank."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        same = all(close(value, own, EXACT) for value, own in zip(seen, before, strict=True))
        if not _wrong_names(seen, expected) or not same:
            return None
        sent = last_line(seen)
        text = (
            (
                f"The model is unchanged on every rank, although the collective at {sent} is "
                "complete: the received values are in other tensors, such as a copy's. "
                "Change the parameters and buffers of `model` itself, in place."
            )
            if sent
            else (
                "The model is unchanged on every rank, and no collective was called. Broadcast "
                f"every parameter and buffer from rank {src}."
            )
        )
        return Diagnosis("models-differ", _ranks(seen, expected), text, sent, GUIDE)

    return rule


def wrong_source(before: Sequence[State], src: int) -> Rule:
    """Recognise ranks that end with the model of a rank other than `src`, or a part of it."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = _wrong_names(seen, expected)
        if not wrong:
            return None
        ended = [_only(wrong, value) for value in seen]
        for rank, state in enumerate(before):
            if rank != src and all(close(one, _only(wrong, state), EXACT) for one in ended):
                what = "model" if len(wrong) == len(state) else listed(wrong)
                text = (
                    f"Every rank ends with rank {rank}'s {what}, but `src` is {src}. Broadcast "
                    "from the rank `src`."
                )
                return Diagnosis(
                    "wrong-source", tuple(range(seen.world_size)), text, last_line(seen), GUIDE
                )
        return None

    return rule


def averaged(before: Sequence[State]) -> Rule:
    """Recognise ranks that end with the mean of all models."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        names = _wrong_names(seen, expected)
        numbers = {name: [array(state[name]) for state in before] for name in names}
        means = {
            name: np.mean(known, 0)
            for name, own in numbers.items()
            if len(known := [value for value in own if value is not None]) == len(own)
        }
        if not means or not all(close(_only([*means], value), means) for value in seen):
            return None
        text = (
            "Every rank ends with the mean of the ranks' models. They must start from the model of "
            "one rank, the source: broadcast its tensors."
        )
        return Diagnosis("models-differ", _ranks(seen, expected), text, last_line(seen), GUIDE)

    return rule


def other_ranks_mixed_in(before: Sequence[State], src: int) -> Rule:
    """Recognise a NaN of another rank in the source's own model: something was summed."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        spoilt = [n for n in _wrong_names(seen, expected) if _has_nan(seen[src].get(n))]
        wrong = [name for name in spoilt if not _has_nan(before[src][name])]
        if not wrong:
            return None
        text = (
            f"Rank {src} is the source, but its {listed(wrong)} became NaN, a value that only "
            "other ranks had. The values of the other ranks must not be used in a broadcast, not "
            "even multiplied by 0: 0 times NaN is NaN."
        )
        return Diagnosis("models-differ", _ranks(seen, expected), text, last_line(seen), GUIDE)

    return rule


def sent_as_float32(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise wrong tensors that are the source's, rounded to float32."""
    wrong = _wrong_names(seen, expected)
    ranks = _ranks(seen, expected) if wrong else ()
    for name, rank in ((name, rank) for name in wrong for rank in ranks):
        whole = array(expected[rank][name])
        if whole is None or not close(seen[rank].get(name), whole.astype(np.float32), EXACT):
            return None
    if not wrong:
        return None
    text = (
        f"{listed(wrong)} arrived rounded to float32. Every tensor must arrive bit for bit, so "
        "broadcast it in its own dtype."
    )
    return Diagnosis("models-differ", ranks, text, last_line(seen), GUIDE)


def buffers_left_out(buffers: Sequence[str]) -> Rule:
    """Recognise models in which the parameters are right and only buffers differ."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = _wrong_names(seen, expected)
        if not wrong or not set(wrong) <= set(buffers):
            return None
        text = (
            f"The parameters are the same on every rank, but {listed(wrong)} "
            f"{verb(wrong, 'is', 'are')} not. Buffers belong to the model and evaluation uses "
            "them, so broadcast them too"
        )
        if set(wrong) < set(buffers):
            text += ", of every dtype, and also those with `persistent=False`, not in state_dict()"
        return Diagnosis(
            "buffers-not-broadcast", _ranks(seen, expected), f"{text}.", last_line(seen), GUIDE
        )

    return rule


def copies_received(before: Sequence[State]) -> Rule:
    """Recognise that only tensors that are not contiguous stay as they were."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong, ranks = _wrong_names(seen, expected), _ranks(seen, expected)
        if not wrong or any(before[0][name].is_contiguous() for name in wrong):
            return None
        if not all(close(_only(wrong, seen[r]), _only(wrong, before[r]), EXACT) for r in ranks):
            return None
        text = (
            f"{listed(wrong)} is unchanged on {ranks_text(ranks)}, and all other tensors are "
            "right. Its memory is not contiguous (the model is in the `channels_last` format), so "
            "`contiguous()` and similar calls return a copy, and only the copy received the "
            "values. After the collective, copy them into the tensor of the model."
        )
        return Diagnosis("models-differ", ranks, text, last_line(seen), GUIDE)

    return rule


def models_differ(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise any other difference from the source's tensors, bit for bit."""
    wrong = _wrong_names(seen, expected)
    if not wrong:
        return None
    ranks = _ranks(seen, expected)
    text = (
        f"After the call, {listed(wrong)} on {ranks_text(ranks)} "
        f"{verb(wrong, 'differs', 'differ')} "
        "from the values that the source rank had before it. The models would stay different in "
        "training. Copy the source's values into every parameter and buffer, on every rank."
    )
    return Diagnosis("models-differ", ranks, text, last_line(seen), GUIDE)


def bits_differ(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise numbers that compare equal but have different bits."""
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
        f"The values of {names} equal the source rank's, but their bits differ, for example "
        "because -0.0 arrived as 0.0. Broadcast the tensors as they are: do not calculate with "
        "them or change their dtype."
    )
    ranks = tuple(sorted({rank for rank, _ in wrong}))
    return Diagnosis("models-differ", ranks, text, last_line(seen), GUIDE)


def weight_not_sent(seen: Observation, weights: Sequence[Any]) -> Diagnosis | None:
    """Recognise ranks without rank 0's weight: a test of unchanged values can't judge them.

    Args:
        seen: the run, without a `src`; each rank's value has the `weight` of the first layer.
        weights: by rank, this weight before the call.
    """
    ended = [value["weight"] for value in seen]
    senders = [r for r, w in enumerate(weights) if close(ended, [w] * len(ended), EXACT)]
    if 0 in senders:
        return None
    code = "wrong-source" if senders else "models-differ"
    if senders:
        found = (
            f"Called without `src`, broadcast_model leaves every rank with the first layer of rank "
            f"{senders[0]}. The default source is rank 0."
        )
    elif close(ended, ended[:1] * len(ended), EXACT):
        found = "All ranks end with the same first layer, but it is not rank 0's layer."
    else:
        found = (
            "broadcast_model did nothing: the weights of the first layer still differ between rank "
            "0 and rank 1."
        )
    text = f"{found} Fix that first: this test needs a model that was broadcast from rank 0."
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
