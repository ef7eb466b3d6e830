"""The visible tests of an epoch and of the evaluation, for `gradsync check`."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsync.testing import assert_on_every_rank, each, exercise, raise_mistake
from support.probes.evaluation import numbers
from support.probes.returned import call_with_line, float_returned
from support.promises import epochs, evaluation
from support.rules.epochs import other_batches
from support.rules.evaluation import differs_across_ranks, other_keys, predicts_otherwise
from support.rules.means import left_the_loop, mean_of_ranks
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import ends_with

GUIDE = "Epochs and evaluation"


def one_weight(value):
    """Return the model `output = weight * input`."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


@exercise("phase1/train_epoch", points=1)
def test_a_smaller_batch_counts_less(ranks):
    """Batches of losses 1, 1 | 4 on rank 0 and 4, 4 | 16 on rank 1 have the mean 30 / 6 = 5."""

    def probe(rank, trainer):
        batches = []
        targets = [[1.0], [1.0], [2.0]] if rank == 0 else [[2.0], [2.0], [4.0]]  # (sample, 1)
        loader = DataLoader(TensorDataset(torch.ones(3, 1), torch.tensor(targets)), batch_size=2)
        model = one_weight(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so a loss is the target squared
        model.register_forward_hook(lambda _model, inputs, _outputs: batches.append(inputs))
        loss, line = call_with_line(
            trainer.train_epoch, model, loader, nn.MSELoss(), optimizer, epoch=0
        )
        loss = float_returned(loss, "train_epoch")
        return {"loss": loss, "batches": len(batches), "line": line}

    seen = ranks(probe, world_size=2)

    batches, line = [value["batches"] for value in seen], seen[0]["line"]
    seen = each(seen, lambda value: value["loss"])
    assert_on_every_rank(
        seen,
        5.0,
        mistakes=[
            lambda _seen, _expected: other_batches(batches, 2, GUIDE, line),
            ends_with(
                [6.25, 6.25],
                "mean-of-means",
                "train_epoch returns 6.25, the mean of its batches' mean losses, where a batch of "
                "one sample counts as much as a batch of two. The mean over the samples is 5.",
                GUIDE,
                line=line,
            ),
            ends_with(
                [7.5, 7.5],
                "mean-of-means",
                "train_epoch returns 7.5, the sum over 3 samples divided by 2, the number of "
                "batches. Divide by the number of samples: then it is 5.",
                GUIDE,
                line=line,
            ),
            ends_with(
                [15.0, 15.0],
                "sum-not-mean",
                "train_epoch returns 15, the sum of a rank's losses. The mean over the samples is "
                "5: divide by the number of samples, 3 on each rank.",
                GUIDE,
                line=line,
            ),
            ends_with(
                [10.0, 10.0],
                "sum-not-mean",
                "train_epoch returns 10, twice the mean, 5. The loss of train_step is already the "
                "mean over the 2 ranks: do not add it up over the ranks again.",
                GUIDE,
            ),
            ends_with(
                [2.5, 2.5],
                "divided-twice",
                "train_epoch returns 2.5, half of the mean, 5. The loss of train_step is already "
                "the mean over the 2 ranks: do not divide it again.",
                GUIDE,
                line=line,
            ),
            ends_with(
                [2.0, 8.0],
                "loss-is-local",
                "Each rank returns the mean loss of its own samples, 2 and 8. Both should return "
                "the mean over all samples, 5.",
                GUIDE,
                line=line,
            ),
        ],
        otherwise=f"the ranks return {list(seen)} from train_epoch. Both should return 5, the mean "
        "loss over the samples of both ranks",
    )


def scores_as_they_come():
    """Return a model that returns the two scores that it is given."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    return model


@exercise("phase1/evaluate", points=1)
def test_every_sample_counts_the_same(ranks):
    """Rank 0 has 3 samples of loss 1, rank 1 has one of loss 5: the mean is 2, not 3."""

    def probe(rank, trainer):
        first, second, wrong = [-1.0, -4.0], [-4.0, -1.0], [-5.0, -2.0]  # scores of classes 0, 1
        scores = torch.tensor([first, second, second] if rank == 0 else [wrong])  # (sample, class)
        data = TensorDataset(scores, torch.tensor([0, 1, 1] if rank == 0 else [0]))
        loader = DataLoader(data, batch_size=2)
        result, line = call_with_line(trainer.evaluate, scores_as_they_come(), loader, nn.NLLLoss())
        return {"numbers": numbers(result), "line": line}

    seen = ranks(probe, world_size=2)

    raise_mistake(nobody_waited(seen, GUIDE))
    line = seen[0]["line"]
    seen = each(seen, lambda value: value["numbers"])
    raise_mistake(other_keys(seen, GUIDE))

    wanted = {"loss": 2.0, "accuracy": 0.75, "samples": 4}
    own = [
        {"loss": 1.0, "accuracy": 1.0, "samples": 3},
        {"loss": 5.0, "accuracy": 0.0, "samples": 1},
    ]
    assert_on_every_rank(
        seen,
        wanted,
        mistakes=[
            ends_with(
                own,
                "loss-is-local",
                f"Each rank returns the numbers of its own samples, {own[0]} and {own[1]}. Both "
                f"should return {wanted}.",
                GUIDE,
                line=line,
            ),
            mean_of_ranks(own, GUIDE),
            differs_across_ranks(GUIDE),
            left_the_loop(4, GUIDE, line),
            predicts_otherwise(GUIDE),
        ],
        otherwise=f"the ranks return {list(seen)} from evaluate. Both should return {wanted}",
    )


def numbered(count, first=0):
    """Return samples k = first, first + 1, ...: input 5 at place k % 4, and class k % 3."""
    k = np.arange(first, first + count)
    return 5 * np.eye(4)[k % 4], k % 3  # (sample, 4), (sample,)


@exercise("phase1/train_epoch", points=1)
def test_the_epoch_is_set_before_the_pass(ranks):
    """In epochs 3 and 0, the sampler's epoch is set on both ranks before its pass begins."""
    epochs.epoch_set(ranks, [numbered(8), numbered(8)], epochs=(3, 0))


@exercise("phase1/train_epoch", points=1)
def test_the_loss_is_exact(ranks):
    """2 ranks with 9 samples each, in batches of 4, 4 and 1, return the mean over all 18."""
    epochs.mean_loss_returned(ranks, numbered(17), world_size=2)


@exercise("phase1/train_epoch", points=1)
def test_the_model_is_trained_in_training_mode(ranks):
    """A model in evaluation mode is switched to training mode, in a later epoch too."""
    epochs.trained_in_training_mode(ranks, numbered(16))


@exercise("phase1/train_epoch", points=1)
def test_a_sampler_without_set_epoch_works(ranks):
    """A sampler without `set_epoch` works, and train_epoch goes through the loader once."""
    epochs.one_pass_without_set_epoch(ranks, numbered(8))


def shares_of(*counts):
    """Return shares of which the ranks' loaders yield these numbers of samples."""
    return [numbered(count + evaluation.UNASKED, 3 * rank) for rank, count in enumerate(counts)]


@exercise("phase1/evaluate", points=1)
def test_ranks_and_batches_of_unequal_size_weigh_right(ranks):
    """Rank 0 has batches of 4 and 1, rank 1 one of 3: both return the numbers of all 8 samples."""
    evaluation.every_sample_counts_the_same(ranks, shares_of(5, 3))


@exercise("phase1/evaluate", points=1)
def test_a_rank_may_have_no_samples(ranks):
    """Rank 0 has 3 samples, rank 1 none: both return the numbers of the 3 samples."""
    evaluation.rank_without_samples(ranks, [numbered(6, 1), numbered(3, 1)])


@exercise("phase1/evaluate", points=1)
def test_the_evaluation_does_not_change_the_model(ranks):
    """evaluate uses evaluation mode, tracks no gradients, and leaves existing gradients alone."""
    evaluation.model_unchanged(ranks, shares_of(5, 3))


@exercise("phase1/evaluate", points=1)
def test_the_former_mode_is_restored(ranks):
    """A model in training mode stays in it, and so does one in evaluation mode."""
    evaluation.former_mode_restored(ranks, shares_of(5, 3))
