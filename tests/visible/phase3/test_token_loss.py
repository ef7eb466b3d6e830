"""Visible tests of token_weighted_loss: two ranks, few tokens, two possible tokens."""

import math

import torch

from gradsync.testing import check, exercise, raise_mistake
from support.rules.token_losses import GUIDE, too_much_sent


def probe(rank, trainer, targets, ignore_index=-100):
    """Return the loss of equal logits, and the gradient of the score of token 0."""
    wanted = torch.tensor(targets[rank])
    logits = torch.zeros(len(wanted), 2, requires_grad=True)
    loss = trainer.token_weighted_loss(logits, wanted, ignore_index)
    loss.backward()
    return {"loss": loss.item(), "gradient": [round(g, 6) for g in logits.grad[:, 0].tolist()]}


@exercise("phase3/token_weighted_loss", points=1)
def test_four_tokens_on_two_ranks_weigh_the_same(ranks):
    """Rank 0 has 3 tokens and rank 1 has 1: each has the weight 2 / 4, which averaging halves."""
    seen = ranks(probe, 2, targets=[[0, 0, 0], [0, -100, -100]])

    gradients = [value["gradient"] for value in seen]
    local = [[-0.166667] * 3, [-0.5, 0.0, 0.0]]
    check(
        gradients != local,
        "mean-of-means",
        f"The gradients are {gradients}: each rank takes the mean over its own tokens. The 4 "
        "tokens must have the same weight.",
        guide=GUIDE,
    )
    check(
        gradients == [[-0.25] * 3, [-0.25, 0.0, 0.0]],
        "wrong-token-weight",
        f"The gradients are {gradients} by rank, but should be -0.25 for each of the 4 tokens and "
        "0 for the two that are ignored.",
        guide=GUIDE,
    )
    mean = sum(value["loss"] for value in seen) / 2
    check(
        abs(mean - math.log(2)) < 1e-5,
        "loss-is-local",
        f"The mean of the two losses is {mean:.4f}, but should be {math.log(2):.4f}, the mean over "
        "the 4 tokens.",
        guide=GUIDE,
    )


@exercise("phase3/token_weighted_loss", points=1)
def test_a_rank_without_tokens_takes_part(ranks):
    """Rank 0 has 2 tokens, rank 1 none: rank 1's loss and gradients are 0."""
    seen = ranks(probe, 2, targets=[[0, 0], [-100, -100]])

    check(
        not any(math.isnan(value["loss"]) for value in seen),
        "nan-loss",
        "The loss of a rank without tokens is NaN: 0 divided by 0.",
        guide=GUIDE,
    )
    gradients = [value["gradient"] for value in seen]
    check(
        gradients == [[-0.5, -0.5], [0.0, 0.0]],
        "wrong-token-weight",
        f"The gradients are {gradients} by rank, but should be -0.5 for both tokens and 0 for the "
        "ignored ones.",
        guide=GUIDE,
    )
    nothing = ranks(probe, 2, targets=[[-100], [-100]])
    check(
        all(value == {"loss": 0.0, "gradient": [0.0]} for value in nothing),
        "nan-loss",
        f"If no rank has a token, the losses and gradients are {list(nothing)}, but should be 0.",
        guide=GUIDE,
    )


@exercise("phase3/token_weighted_loss", points=1)
def test_the_ranks_exchange_one_number(ranks):
    """One collective of one number, also if the ignored token is 1 instead of -100."""
    seen = ranks(probe, 2, targets=[[0, 1, 0], [1, 1, 0]], ignore_index=1)

    raise_mistake(too_much_sent(seen))
    gradients = [value["gradient"] for value in seen]
    check(
        gradients == [[-0.333333, 0.0, -0.333333], [0.0, 0.0, -0.333333]],
        "ignored-tokens-counted",
        f"With ignore_index=1, the gradients are {gradients}: three tokens count, each with the "
        "weight 2 / 3, and the others have no gradient.",
        guide=GUIDE,
    )
