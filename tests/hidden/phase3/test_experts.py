"""Experts on N ranks: tokens travel to their experts and back; and the loss that balances them."""

import torch

from gradsync.testing import case_by_case, exercise, raise_mistake
from support.probes.experts import expert_of, expert_refusals, probe_balance, probe_experts
from support.probes.seeding import seed_weights
from support.rules.experts import (
    GUIDE,
    accepted_counts,
    balance_mistake,
    layer_mistake,
    sent_to_all,
)
from support.rules.waiting import nobody_waited


def draw(rng, tokens, experts, *, d_model=5, d_hidden=7, favourite=None, backward=True):
    """Return a layer's weights, and random inputs for each rank.

    With a `favourite`, all tokens choose this expert.
    """
    seed_weights(int(rng.integers(2**31)))
    router = torch.randn(experts, d_model)
    inputs = [torch.randn(count, d_model) for count in tokens]
    if favourite is not None:
        for part in inputs:
            part[:, 0] = part[:, 0].abs() + 2
        router *= 0.1  # probabilities near 1 would have tiny gradients
        router[favourite, 0] = 1.0
    states = [expert_of(d_model, d_hidden).state_dict() for _ in range(experts)]
    return {
        "router": router,
        "states": [{n: 3 * value for n, value in state.items()} for state in states],
        "inputs": inputs,
        "upstream": [torch.randn_like(part) for part in inputs],
        "backward": backward,
    }


def run(ranks, world_size, *cases):
    seen = ranks(probe_experts, world_size, cases=cases)
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(cases))


@exercise("phase3/ExpertParallelMLP", points=2.75)
def test_forward_and_backward_equal_one_rank(ranks, rng):
    """Outputs, and gradients of inputs, router and experts, on 3 ranks, on 2, and on one."""
    for world_size, experts in ((3, 6), (2, 4), (1, 3)):
        counts = rng.integers(3, 9, world_size)
        case = draw(rng, counts, experts)

        [seen] = run(ranks, world_size, case)

        raise_mistake(layer_mistake(seen, case))


@exercise("phase3/ExpertParallelMLP", points=1.5)
def test_an_expert_may_get_no_token(ranks, rng):
    """All tokens choose one expert, on the first rank or on the last one."""
    cases = [draw(rng, [4, 3, 5], 3, favourite=favourite) for favourite in (0, 2)]

    for seen, case in zip(run(ranks, 3, *cases), cases, strict=True):
        raise_mistake(layer_mistake(seen, case))


@exercise("phase3/ExpertParallelMLP", points=1.5)
def test_a_rank_may_have_no_token(ranks, rng):
    """The first, the last, or all ranks but one have no token.

    One run for each case: a rank that skips a layer must not meet the others in the next one.
    """
    for counts in ([0, 4, 7], [5, 3, 0], [0, 6, 0]):
        case = draw(rng, counts, 6)

        [seen] = run(ranks, 3, case)

        raise_mistake(layer_mistake(seen, case))


@exercise("phase3/ExpertParallelMLP", points=1.5)
def test_tokens_go_to_their_experts_only(ranks, rng):
    """No rank sends its tokens, or all results, to every other rank."""
    case = draw(rng, [40, 40, 40], 6, backward=False)

    [seen] = run(ranks, 3, case)

    raise_mistake(sent_to_all(seen, 40 * 5))
    raise_mistake(layer_mistake(seen, case))


@exercise("phase3/ExpertParallelMLP", points=0.75)
def test_experts_that_cannot_be_split_evenly_are_refused(ranks):
    """A number of experts that N does not divide raises a ValueError."""
    counts = [4, 2, 7, 6]

    def probe(model_parallel, counts):
        return expert_refusals(model_parallel, counts)

    raise_mistake(accepted_counts(ranks(probe, 3, counts=counts), counts))


def draw_choices(rng, tokens, experts):
    """Return by rank the probabilities of random tokens, and the experts that they chose."""
    seed_weights(int(rng.integers(2**31)))
    probabilities = [torch.randn(count, experts).softmax(-1) for count in tokens]
    chosen = [torch.from_numpy(rng.integers(0, experts - 1, count)) for count in tokens]
    return probabilities, chosen


@exercise("phase3/load_balancing_loss", points=1.75)
def test_the_loss_and_its_gradients_are_those_of_one_process(ranks, rng):
    """On 3, 2 and 1 ranks with different numbers of tokens; one expert is never chosen."""
    for world_size in (3, 2, 1):
        cases = [draw_choices(rng, rng.permutation([3, 5, 8])[:world_size], 4)]

        [seen] = case_by_case(ranks(probe_balance, world_size, cases=cases), 1)

        raise_mistake(balance_mistake(seen, *cases[0]))


@exercise("phase3/load_balancing_loss", points=1.25)
def test_a_rank_without_tokens_takes_part_in_the_loss(ranks, rng):
    """A rank without tokens has the same loss, and the others the same gradients."""
    cases = [draw_choices(rng, counts, 5) for counts in ([6, 0, 2], [0, 0, 4])]

    seen = case_by_case(ranks(probe_balance, 3, cases=cases), 2)

    for of_one, case in zip(seen, cases, strict=True):
        raise_mistake(balance_mistake(of_one, *case))
