"""The reference trainer on a model that it has already trained: no hooks are left."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync import run_ranks
from support.probes import Info

PHASE = Path(__file__).parents[3] / "solutions" / "phase2"


class Branches(nn.Module):
    """Two layers; a pass may omit the second."""

    def __init__(self, both):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.both = both

    def forward(self, inputs):
        return self.first(inputs) + (self.second(inputs) if self.both else 0)


def train(rank, world_size, times, alike=True):
    """Train one model several times; return the number of hooks on its parameters."""
    sys.path.insert(0, str(PHASE))
    import template_trainer

    model = Branches(both=alike or rank == 0)
    data = TensorDataset(torch.ones(12, 4), torch.zeros(12, dtype=torch.int64))
    for _ in range(times):
        template_trainer.train(
            Info(rank, world_size), model, data, data, epochs=1, batch_size=2, lr=0.1
        )
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def test_training_again_sends_the_same_messages():
    once, twice = (run_ranks(train, 2, times=times) for times in (1, 2))

    assert twice.collectives(0) == 2 * once.collectives(0)


def test_ranks_that_use_other_parameters_may_train_a_model_again():
    run_ranks(train, 2, times=2, alike=False)


def test_hooks_are_removed_with_their_averager():
    assert list(run_ranks(train, 2, times=2)) == [0, 0]
