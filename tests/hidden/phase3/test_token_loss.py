"""The loss that weights every token equally, whichever rank has it."""

import numpy as np
import torch

from gradsync.testing import assert_rank_by_rank, by_rank, check, each, exercise, raise_mistake
from gradsync.testing.values import close
from support.probes.returned import tensor_returned
from support.rules.token_losses import GUIDE, gradients, loss_mistakes, too_much_sent

VOCABULARY = 7
IGNORED = -100


def draw(rng, counts, tokens, ignored=IGNORED):
    """Draw logits (rank, token, vocabulary) and targets, of which `counts[rank]` count."""
    logits = rng.standard_normal((len(counts), tokens, VOCABULARY)).astype(np.float32)
    targets = rng.integers(0, VOCABULARY, (len(counts), tokens))
    for rank, count in enumerate(counts):
        targets[rank, rng.permutation(tokens)[count:]] = ignored
    return logits, targets


def probe(rank, trainer, logits, targets, shape, options):
    """Return the gradient of this rank's loss, its value, and its number of elements."""
    values = torch.from_numpy(logits[rank]).view(*shape, -1).requires_grad_()
    wanted = torch.from_numpy(targets[rank]).view(shape)
    loss = tensor_returned(
        trainer.token_weighted_loss(values, wanted, **options), "token_weighted_loss"
    )
    loss.backward()
    return {"gradient": values.grad.flatten(0, -2), "loss": loss.item(), "dim": loss.dim()}


def run(ranks, logits, targets, shape, **options):
    return ranks(
        probe, len(logits), logits=by_rank(logits), targets=by_rank(targets), shape=shape,
        options=options,
    )  # fmt: skip


def check_gradients(seen, logits, targets, ignored=IGNORED):
    """Compare the gradients, averaged over ranks later, with those of one process."""
    right = gradients(logits, targets, ignored)
    assert_rank_by_rank(
        each(seen, lambda value: value["gradient"]),
        list(right),
        mistakes=loss_mistakes(logits, targets, ignored),
        otherwise="averaged over the ranks, the gradients are not those of the mean over the "
        "tokens of all ranks",
    )
    check(
        all(value["dim"] == 0 for value in seen),
        "wrong-signature",
        "token_weighted_loss must return a scalar, a tensor without dimensions.",
        guide=GUIDE,
    )


@exercise("phase3/token_weighted_loss", points=2.5)
def test_every_token_weighs_the_same(ranks, rng):
    """With unequal numbers of tokens, the averaged gradients are those of one process."""
    for counts in ([6, 1], [2, 12, 5], [3]):
        logits, targets = draw(rng, counts, 12)

        check_gradients(run(ranks, logits, targets, (3, 4)), logits, targets)


@exercise("phase3/token_weighted_loss", points=1.25)
def test_a_rank_without_tokens_contributes_zeros(ranks, rng):
    """If all tokens of a rank are ignored, it takes part, and its gradients are 0, not NaN."""
    logits, targets = draw(rng, [0, 4, 3], 6)

    seen = run(ranks, logits, targets, (6,))

    check_finite(seen)
    check_gradients(seen, logits, targets)


def check_finite(seen):
    bad = [
        rank
        for rank, value in enumerate(seen)
        if not (np.isfinite(np.asarray(value["gradient"])).all() and np.isfinite(value["loss"]))
    ]
    check(
        not bad,
        "nan-loss",
        "Without a token that counts, the loss or its gradient is NaN or infinite: 0 is divided "
        "by 0. A rank without tokens must contribute zeros, and the loss of no tokens is 0.",
        ranks=bad,
        guide=GUIDE,
    )


@exercise("phase3/token_weighted_loss", points=1.25)
def test_without_any_token_the_loss_is_zero(ranks, rng):
    """If no rank has a token that counts, the loss is 0, and so is every gradient."""
    logits, targets = draw(rng, [0, 0], 5)
    some, wanted = draw(rng, [1, 4], 5)

    # With tokens first: a constant 0 is not an answer.
    check_gradients(run(ranks, some, wanted, (5,)), some, wanted)
    seen = run(ranks, logits, targets, (5,))

    check_finite(seen)
    check(
        all(value["loss"] == 0 and not np.asarray(value["gradient"]).any() for value in seen),
        "nan-loss",
        "No rank has a token that counts, but the loss or a gradient is not 0.",
        guide=GUIDE,
    )


@exercise("phase3/token_weighted_loss", points=0.5)
def test_another_ignore_index_is_used(ranks, rng):
    """With ignore_index=0, the tokens of target 0 do not count."""
    logits, targets = draw(rng, [4, 2], 8, ignored=0)

    seen = run(ranks, logits, targets, (2, 4), ignore_index=0)

    check_gradients(seen, logits, targets, ignored=0)


@exercise("phase3/token_weighted_loss", points=0.5)
def test_one_number_is_exchanged(ranks, rng):
    """There is one collective, of one number, however many tokens there are."""
    logits, targets = draw(rng, [30, 50, 9], 60)

    seen = run(ranks, logits, targets, (60,))

    raise_mistake(too_much_sent(seen))
    check_gradients(seen, logits, targets)
    total = sum(value["loss"] for value in seen) / len(seen)
    check(
        total > 0 and not close(total, 0.0),
        "loss-is-local",
        "The mean of the ranks' losses is 0, although there are tokens.",
        guide=GUIDE,
    )
