"""Ring attention: a sequence on N ranks, whose keys and values go round."""

import numpy as np
import pytest
import torch

from gradsync.testing import case_by_case, exercise, raise_mistake
from support.probes.attention import mark_of, probe_attention, probe_chunks
from support.rules.attention import (
    GUIDE,
    LARGE,
    exchange_mistake,
    gradient_mistake,
    output_mistake,
    weights_mistake,
)
from support.rules.waiting import everyone_sends, nobody_waited


def draw(rng, world_size, rows, dim, *, causal, batch=(1, 2), dtype=np.float32, **options):
    """Return random queries, keys, values and gradients of a whole sequence."""
    shape = (*batch, world_size * rows, dim)
    names = ("q", "k", "v", "upstream")
    drawn = {n: torch.from_numpy(rng.standard_normal(shape).astype(dtype)) for n in names}
    return {**drawn, "causal": causal, **options}


def with_weights(case):
    """Return the case with one-hot values, so that the outputs are the weights of the keys."""
    sequence, dim = case["v"].shape[2:]
    return {**case, "v": torch.eye(sequence, dim).expand_as(case["v"]).clone(), "upstream": None}


def run(ranks, world_size, *cases):
    seen = ranks(probe_attention, world_size, mistakes=[everyone_sends(GUIDE)], cases=cases)
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(cases))


@pytest.mark.parametrize("world_size", [3, 2])
@exercise("phase3/ring_attention", points=2.25)
def test_causal_attention_equals_one_process(ranks, rng, world_size):
    """Each query has the weights of all earlier keys of the whole sequence; `causal` is true."""
    rows = int(rng.integers(2, 5))
    weights = with_weights(draw(rng, world_size, rows, 4 * world_size + 1, causal=None))
    values = draw(rng, world_size, rows, 6, causal=True, batch=(2, 3))

    of_weights, of_values = run(ranks, world_size, weights, values)

    raise_mistake(weights_mistake(of_weights, weights))
    raise_mistake(output_mistake(of_values, values))


@exercise("phase3/ring_attention", points=1.5)
def test_attention_to_the_whole_sequence_equals_one_process(ranks, rng):
    """With causal=False, each query has the weights of all keys, on 4 ranks."""
    weights = with_weights(draw(rng, 4, 2, 9, causal=False))
    values = draw(rng, 4, 3, 5, causal=False)

    of_weights, of_values = run(ranks, 4, weights, values)

    raise_mistake(weights_mistake(of_weights, weights))
    raise_mistake(output_mistake(of_values, values))


@exercise("phase3/ring_attention", points=2.75)
def test_the_gradients_equal_those_of_one_process(ranks, rng):
    """Queries, keys and values have the gradients of the whole sequence, on 3 ranks."""
    cases = [draw(rng, 3, 2, 4, causal=causal) for causal in (False, True)]

    for seen, case in zip(run(ranks, 3, *cases), cases, strict=True):
        raise_mistake(output_mistake(seen, case))
        raise_mistake(gradient_mistake(seen, case))


@exercise("phase3/ring_attention", points=2.25)
def test_chunks_go_round_the_ring(ranks, rng):
    """On 4 ranks: 3 exchanges with neighbours, at most two chunks beside one's own."""
    case = draw(rng, 4, 4, 8, causal=bool(rng.integers(2)))
    case["q"][..., 0] = 0
    for rank, keys in enumerate(case["k"].chunk(4, 2)):
        keys[..., 0] = mark_of(rank)

    seen = ranks(probe_chunks, 4, mistakes=[everyone_sends(GUIDE)], case=case)

    raise_mistake(nobody_waited(seen, GUIDE))
    raise_mistake(exchange_mistake(seen, 2 * case["k"][..., :4, :].numel()))
    raise_mistake(output_mistake(seen, case))


@exercise("phase3/ring_attention", points=1.5)
def test_large_scores_do_not_overflow(ranks, rng):
    """Scores of several hundreds, whose largest differs by query, and is on any rank."""
    cases = []
    for top in range(3):
        case = draw(rng, 3, 2, 4, causal=False)
        case["q"][..., 0], case["k"][..., 0] = 40.0, -10.0 * (1 + top)
        case["k"].chunk(3, 2)[top][..., 0] = 10.0 * (2 - top)
        case["q"][..., ::2, 0] *= -1
        cases.append(case)
    cases.append({**cases[2], "causal": True})

    for seen, case in zip(run(ranks, 3, *cases), cases, strict=True):
        raise_mistake(output_mistake(seen, case, LARGE))
        raise_mistake(gradient_mistake(seen, case, LARGE))


@pytest.mark.parametrize("world_size", [1, 2])
@exercise("phase3/ring_attention", points=0.75)
def test_any_layout_in_memory_and_any_number_of_ranks(ranks, rng, world_size):
    """Transposed inputs with a single head, on one rank and on two."""
    case = draw(rng, world_size, 3, 2, causal=True, batch=(3, 1), turned=True)

    [seen] = run(ranks, world_size, case)

    raise_mistake(output_mistake(seen, case))
    raise_mistake(gradient_mistake(seen, case))
