"""The visible tests of the training, for `gradsync check`."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import check, exercise, raise_mistake
from support.probes.ready_made import DDP, without
from support.probes.training import rows_of
from support.promises import training
from support.promises.training import PHASE1
from support.rules.histories import other_rows

GUIDE = "Training"


def numbered(count, first=0):
    """Return samples k = first, ...: inputs (k / 10, k % 2, k % 3, 1) and class k % 3."""
    k = np.arange(first, first + count)
    return np.stack([k / 10, k % 2, k % 3, np.ones(count)], axis=1), k % 3


@exercise("phase1/train", points=1)
def test_each_rank_trains_on_its_share_in_the_order_of_the_epoch(ranks):
    """2 ranks share 21 samples, in a new order in each epoch, which depends on the seed."""
    training.own_share_in_order_of_epoch(
        ranks, PHASE1, (numbered(21), numbered(4, first=30)), seed=1
    )


@exercise("phase1/train", points=1)
def test_the_weights_equal_those_of_one_process(ranks):
    """2 ranks with 4 samples each start from rank 0's weights, and train as one process with 8."""
    training.weights_of_one_process(
        ranks, PHASE1, (numbered(8), numbered(6, first=30)), seeds=[11, 5]
    )


@exercise("phase1/train", points=1)
def test_the_history_has_the_numbers_of_each_epoch(ranks):
    """Both ranks return the train loss, val loss and val accuracy of epochs 0, 1 and 2."""
    training.numbers_of_each_epoch(ranks, PHASE1, (numbered(10), numbered(6, first=30)))


@exercise("phase1/train", points=1)
def test_only_rank_0_prints(ranks):
    """Rank 0 prints a line for each epoch, and rank 1 prints nothing."""
    training.only_rank_0_prints(ranks, PHASE1, (numbered(8), numbered(6, first=30)), world_size=2)


def points(count, seed):
    """Draw points of a square: class 1 above its diagonal, class 0 below."""
    places = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1  # xy
    return TensorDataset(places, (places[:, 1] > places[:, 0]).long())


@exercise("phase1/train", points=1)
def test_the_model_learns(ranks):
    """After 3 epochs on 2 ranks, a line separates points above the diagonal from the others."""

    def probe(rank, world_size, trainer):
        torch.manual_seed(rank)
        info = trainer.RankInfo(rank, world_size, rank, "127.0.0.1", 29500)
        sets = points(200, seed=1), points(40, seed=2)
        with without(DDP):
            options = {"epochs": 3, "batch_size": 20, "lr": 1.0}
            return {"history": rows_of(trainer.train(info, nn.Linear(2, 2), *sets, **options))}

    seen = ranks(probe, 2)

    raise_mistake(other_rows(seen, GUIDE))
    history = seen[0]["history"]
    losses = [row["train_loss"] for row in history]
    accuracy = history[2]["val_accuracy"]
    check(
        losses[2] < losses[0] and accuracy >= 0.7,
        "does-not-learn",
        f"Over 3 epochs, the train loss goes from {losses[0]:.3f} to {losses[2]:.3f}, and the last "
        f"val_accuracy is {accuracy:.3f}. The loss should decrease, and the accuracy should reach "
        "at least 0.7, because a straight line separates these points.",
        guide=GUIDE,
        vague=True,
    )
