"""Visible tests of experts on two ranks: each adds other numbers to the tokens that it gets."""

import math

import torch

from gradsync.testing import case_by_case, exercise, raise_mistake
from support.probes.experts import expert_refusals, probe_balance, probe_experts
from support.rules.experts import (
    GUIDE,
    accepted_counts,
    balance_mistake,
    layer_mistake,
    sent_to_all,
)
from support.rules.waiting import nobody_waited

LIKELY = math.log(3)  # a score; with the score 0 of the other expert: 3/4 and 1/4


def case_of(*inputs, experts=2):
    """Return a layer in which feature e of a token is the score of expert e, and upstream 1.

    Expert e returns 10 * (e + 1) + f in feature f, plus a little of the token.
    """
    states = [
        {
            "0.weight": torch.full((1, experts), 0.1 * (number + 1)),
            "0.bias": torch.zeros(1),
            "2.weight": torch.full((experts, 1), 0.5 + number),
            "2.bias": 10.0 * (number + 1) + torch.arange(experts),
        }
        for number in range(experts)
    ]
    tokens = [torch.tensor(part).reshape(-1, experts) for part in inputs]
    return {
        "router": torch.eye(experts),
        "states": states,
        "inputs": tokens,
        "upstream": [torch.ones_like(part) for part in tokens],
        "backward": True,
    }


def check_layer(ranks, *cases):
    seen = ranks(probe_experts, len(cases[0]["inputs"]), cases=cases)
    raise_mistake(nobody_waited(seen, GUIDE))
    for of_one, case in zip(case_by_case(seen, len(cases)), cases, strict=True):
        raise_mistake(layer_mistake(of_one, case))
    return seen


@exercise("phase3/ExpertParallelMLP", points=1)
def test_tokens_get_the_results_of_their_experts(ranks):
    """Tokens choose experts 1, 0, 1 on rank 0 and 0 on rank 1, each with probability 3/4."""
    first = [[0.0, LIKELY], [LIKELY, 0.0], [0.5, 0.5 + LIKELY]]
    second = [[1.0 + LIKELY, 1.0]]

    check_layer(ranks, case_of(first, second))


@exercise("phase3/ExpertParallelMLP", points=1)
def test_ranks_have_two_experts_each(ranks):
    """Rank 0 has experts 0 and 1, rank 1 has 2 and 3; the tokens choose 3, 0, 2 and 1, 2."""
    scores = torch.diag(torch.tensor([4.0, 5.0, 6.0, 7.0])).tolist()

    check_layer(
        ranks, case_of([scores[3], scores[0], scores[2]], [scores[1], scores[2]], experts=4)
    )


@exercise("phase3/ExpertParallelMLP", points=1)
def test_an_expert_or_a_rank_has_no_token(ranks):
    """All tokens choose expert 0, or expert 1; rank 1 has no token, or rank 0.

    One run for each case: a rank that skips a layer must not meet the others in the next one.
    """
    to_0, to_1 = [LIKELY, 0.0], [0.0, LIKELY]

    for tokens in (([to_0], [to_0]), ([to_1, to_1], []), ([], [to_0])):
        check_layer(ranks, case_of(*tokens))


@exercise("phase3/ExpertParallelMLP", points=1)
def test_tokens_are_not_sent_to_all_ranks(ranks):
    """Each rank has 20 tokens of 2 numbers, and sends none of them to a rank without its expert."""
    case = case_of([[LIKELY, 0.0]] * 20, [[0.0, LIKELY]] * 20)
    case["backward"] = False

    seen = check_layer(ranks, case)

    raise_mistake(sent_to_all(seen, 40))


@exercise("phase3/ExpertParallelMLP", points=1)
def test_three_experts_on_two_ranks_are_refused(ranks):
    """Three experts raise a ValueError on two ranks, and four do not."""

    def probe(model_parallel, counts):
        return expert_refusals(model_parallel, counts)

    raise_mistake(accepted_counts(ranks(probe, 2, counts=[3, 1, 4]), [3, 1, 4]))


@exercise("phase3/load_balancing_loss", points=1)
def test_four_tokens_on_two_ranks(ranks):
    """Three tokens chose expert 0, one expert 1, none expert 2; the means are 0.7, 0.2 and 0.1.

    The loss is 3 * (0.75 * 0.7 + 0.25 * 0.2) = 1.725, on both ranks.
    """
    first = torch.tensor([[0.9, 0.0, 0.1], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1]])
    probabilities = [first, torch.tensor([[0.4, 0.5, 0.1]])]
    chosen = [torch.tensor([0, 0, 0]), torch.tensor([1])]

    [seen] = case_by_case(ranks(probe_balance, 2, cases=[(probabilities, chosen)]), 1)

    raise_mistake(balance_mistake(seen, probabilities, chosen))


@exercise("phase3/load_balancing_loss", points=1)
def test_equal_shares_have_the_smallest_loss(ranks):
    """With equal probabilities and choices, the loss is 1; one rank has no tokens."""
    probabilities = [torch.full((2, 2), 0.5), torch.zeros(0, 2)]
    chosen = [torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64)]

    [seen] = case_by_case(ranks(probe_balance, 2, cases=[(probabilities, chosen)]), 1)

    raise_mistake(balance_mistake(seen, probabilities, chosen))
