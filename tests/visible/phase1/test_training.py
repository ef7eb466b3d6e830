"""The visible tests of the training, for `gradsync check`, on 200 points of a plane."""

import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import check, exercise
from gradsync.text import counted
from support.probes.ready_made import DDP, without

GUIDE = "Training"
MAX_SHOWN = 100  # characters of a line in a message


class Line(nn.Linear):
    """Separates the plane into two classes; records how many points it is trained on."""

    def __init__(self):
        super().__init__(2, 2)
        self.trained = 0  # points
        self.largest = 0  # points in the largest batch

    def forward(self, places):
        if self.training:
            self.trained += len(places)
            self.largest = max(self.largest, len(places))
        return super().forward(places)


def points(count, seed):
    """Draw points of a square: class 1 above its diagonal, class 0 below."""
    places = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1  # xy
    return TensorDataset(places, (places[:, 1] > places[:, 0]).long())


def train_a_little(rank, world_size, trainer):
    """Train for 3 epochs, starting with different weights on each rank."""
    warnings.simplefilter("ignore")  # a warning would count as a printed line
    torch.manual_seed(rank)
    model = Line()
    info = trainer.RankInfo(rank, world_size, rank, "127.0.0.1", 29500)
    sets = points(200, seed=1), points(40, seed=2)
    with without(DDP):
        history = trainer.train(info, model, *sets, epochs=3, batch_size=20, lr=1.0)
    return {
        "history": history,
        "weights": model.weight,
        "trained": model.trained,
        "largest": model.largest,
    }


@exercise("phase1/train", points=1)
def test_the_model_learns(ranks):
    """After 3 epochs on 2 ranks, the model separates points above the diagonal from the others."""
    seen = ranks(train_a_little, world_size=2)

    history = seen[0]["history"]
    keys = {"epoch", "train_loss", "val_loss", "val_accuracy"}
    check(
        isinstance(history, list)
        and all(isinstance(row, dict) and row.keys() >= keys for row in history)
        and [row["epoch"] for row in history] == [0, 1, 2],
        "exception",
        f"train with epochs=3 returns {history}. It should return a list of 3 dicts, for epochs 0, "
        "1 and 2, each with epoch, train_loss, val_loss and val_accuracy.",
        guide=GUIDE,
    )
    losses = [float(row["train_loss"]) for row in history]
    accuracy = float(history[2]["val_accuracy"])
    check(
        losses[2] < losses[0] and accuracy >= 0.8,
        "does-not-learn",
        f"Over 3 epochs, the train loss goes from {losses[0]:.3f} to {losses[2]:.3f}, and the last "
        f"val_accuracy is {accuracy:.3f}. The loss should decrease, and the accuracy should reach "
        "at least 0.8, because a straight line separates these points.",
        guide=GUIDE,
    )
    check(
        accuracy <= 1,
        "exception",
        f"The last val_accuracy is {accuracy:.3f}. It should be between 0 and 1: the share of "
        "correctly classified samples.",
        guide=GUIDE,
    )


@exercise("phase1/train", points=1)
def test_both_ranks_do_half_of_the_work_and_end_with_one_model(ranks):
    """Each rank trains on half of the points, and both end with the same weights."""
    seen = ranks(train_a_little, world_size=2)

    counts = [value["trained"] for value in seen]
    check(
        counts == [300, 300],
        "sampler-not-used",
        f"In 3 epochs over 200 points, the 2 ranks train on {counts[0]} and {counts[1]} of them. "
        "Each should train on 300, half of the points in each epoch.",
        ranks=[rank for rank in (0, 1) if counts[rank] != 300],
        guide=GUIDE,
    )
    largest = [value["largest"] for value in seen]
    check(
        largest != [10, 10],
        "batch-size-divided",
        "With a batch_size of 20, each of the 2 ranks trains on batches of 10 points. `batch_size` "
        "is the batch size of each rank: do not divide it.",
        ranks=(0, 1),
        guide=GUIDE,
    )
    weights = [value["weights"].numpy() for value in seen]  # (rank, class, xy)
    shown = [" ".join(f"{number:.2f}" for number in values.flat) for values in weights]
    check(
        np.allclose(weights[0], weights[1], atol=1e-3),
        "models-differ",
        f"After training, the weights are {shown[0]} on rank 0 and {shown[1]} on rank 1. They must "
        "be the same: start from rank 0's weights, and take the same steps on every rank.",
        ranks=(0, 1),
        guide=GUIDE,
    )


@exercise("phase1/train", points=1)
def test_only_rank_0_prints(ranks):
    """Rank 0 prints a line for each epoch, and rank 1 prints nothing."""
    seen = ranks(train_a_little, world_size=2)

    printed = [text.strip() for text in seen.output]
    [first, *_] = printed[1].splitlines() or [""]
    check(
        printed[1] == "",
        "every-rank-prints",
        f"Rank 1 prints {first[:MAX_SHOWN]!r}. With 100 ranks, you would read every line 100 "
        "times. Print only on rank 0.",
        ranks=[1],
        guide=GUIDE,
    )
    lines = len(printed[0].splitlines())
    check(
        lines >= 3,
        "every-rank-prints",
        f"Rank 0 prints {counted(lines, 'line')} in 3 epochs. It should print at least one line "
        "for each epoch.",
        ranks=[0],
        guide=GUIDE,
    )
