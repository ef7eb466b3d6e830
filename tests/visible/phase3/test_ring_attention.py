"""Visible tests of ring attention: two or four ranks, a position or two on each."""

import math

import torch

from gradsync.testing import case_by_case, check, exercise, raise_mistake
from gradsync.testing.values import close
from support.probes.attention import mark_of, probe_attention, probe_chunks
from support.rules.attention import (
    GUIDE,
    exchange_mistake,
    gradient_mistake,
    nan_outputs,
    weights_mistake,
)
from support.rules.waiting import everyone_sends, nobody_waited


def case_of(q, k, v, causal, upstream=1.0):
    """Return a case with a batch, a head and a feature of 1."""
    shaped = {
        name: torch.tensor(numbers)[None, None, :, None]
        for name, numbers in (("q", q), ("k", k), ("v", v))
    }
    return {**shaped, "upstream": torch.full_like(shaped["q"], upstream), "causal": causal}


def with_weights(sequence, causal):
    """Return a case with equal scores, whose outputs are the weights of the keys."""
    ones = torch.ones(1, 1, sequence, sequence)
    return {"q": ones, "k": ones, "v": torch.eye(sequence).expand_as(ones), "causal": causal}


def run(ranks, world_size, *cases):
    seen = ranks(probe_attention, world_size, mistakes=[everyone_sends(GUIDE)], cases=cases)
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(cases))


def check_outputs(seen, wanted, code, text):
    outputs = [round(number, 4) for value in seen for number in value["output"].flatten().tolist()]
    check(close(outputs, wanted, 1000), code, f"The outputs are {outputs}. {text}", guide=GUIDE)


@exercise("phase3/ring_attention", points=1)
def test_a_position_sees_itself_and_earlier_ones(ranks):
    """Equal scores, 2 positions on each of 3 ranks: position p gives 1/(p + 1) to those up to p."""
    case = with_weights(6, causal=True)

    [seen] = run(ranks, 3, case)

    raise_mistake(weights_mistake(seen, case))


@exercise("phase3/ring_attention", points=1)
def test_without_causal_each_position_sees_all(ranks):
    """With causal=False, equal scores give each of 6 positions the weight 1/6, also on one rank."""
    case = with_weights(6, causal=False)

    for world_size in (3, 1):
        [seen] = run(ranks, world_size, case)

        raise_mistake(weights_mistake(seen, case))


@exercise("phase3/ring_attention", points=1)
def test_chunks_weigh_by_their_scores(ranks):
    """The scores 0 on rank 0 and ln 3 on rank 1, after a division by sqrt(4): 1/4 and 3/4."""
    q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), torch.eye(2, 4)[None, None]
    q[..., 0], k[:, :, 1, 0] = 1.0, 2 * math.log(3)
    case = {"q": q, "k": k, "v": v, "causal": False}

    [seen] = run(ranks, 2, case)

    raise_mistake(weights_mistake(seen, case))


@exercise("phase3/ring_attention", points=1)
def test_gradients_come_home(ranks):
    """Equal scores, values 2, 6: the values' gradients are 1.5 and 0.5, the keys' -1 and 1.

    With four features instead of one, the values' are the same, and the keys' -2 and 2: the scores'
    gradients are divided by sqrt(4), and each feature of the outputs adds to them. Without causal,
    the values' are 1 and 1, and the keys' -2 and 2.
    """
    case = case_of([1.0, 1.0], [1.0, 1.0], [2.0, 6.0], causal=True)
    wide = {**case, **{name: case[name].repeat(1, 1, 1, 4) for name in ("q", "k", "v", "upstream")}}

    cases = [case, wide, {**case, "causal": False}]

    every = run(ranks, 2, *cases)

    for seen, its in zip(every, cases, strict=True):
        raise_mistake(gradient_mistake(seen, its))
    check_outputs(every[0], [2.0, 4.0], "future-visible", "They must be 2 and 4.")


@exercise("phase3/ring_attention", points=1)
def test_three_exchanges_on_four_ranks(ranks):
    """In the forward, each rank sends three chunks to a neighbour, and has two of others."""
    ones = torch.ones(1, 1, 16, 8)
    case = {"q": ones.clone(), "k": ones.clone(), "v": ones.clone(), "causal": False}
    case["q"][..., 0] = 0
    for rank, keys in enumerate(case["k"].chunk(4, 2)):
        keys[..., 0] = mark_of(rank)

    seen = ranks(probe_chunks, 4, mistakes=[everyone_sends(GUIDE)], case=case)

    raise_mistake(nobody_waited(seen, GUIDE))
    raise_mistake(exchange_mistake(seen, 2 * 4 * 8))
    check_outputs(seen, [1.0] * 128, "differs-from-single-process", "They must all be 1.")


@exercise("phase3/ring_attention", points=1)
def test_large_scores_do_not_overflow(ranks):
    """Scores 0 and 500 or -500, 0 and -500, twice -500: the weights are 0 and 1, or equal."""
    high, low, lowest = run(
        ranks, 2,
        case_of([1.0, -1.0] * 2, [0.0, 0.0, 500.0, 500.0], [4.0, 4.0, 8.0, 8.0], causal=False),
        case_of([1.0, 1.0], [0.0, -500.0], [4.0, 8.0], causal=True),
        case_of([1.0, 1.0], [-500.0, -500.0], [4.0, 8.0], causal=False),
    )  # fmt: skip

    for seen, wanted in ((high, [8.0, 4.0] * 2), (low, [4.0, 4.0]), (lowest, [6.0, 6.0])):
        broken = [rank for rank in range(2) if not bool(seen[rank]["output"].isfinite().all())]
        raise_mistake(nan_outputs(broken) if broken else None)
        check_outputs(seen, wanted, "differs-from-single-process", f"They must be {wanted}.")
