"""The reference averager, compared with plain sums over random steps.

Its buckets still contain the gradients of the previous step. All ranks run the same random steps:
backward with or without the second layer on some rank, under `no_sync()` or not, several times
before `finish()`, with gradients removed, zeroed or kept.
"""

import copy
import random
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradsync import run_ranks

PHASE = Path(__file__).parents[3] / "solutions" / "phase2"
CLEARED = {"removed": {"set_to_none": True}, "zeroed": {"set_to_none": False}, "kept": None}


def steps_of(seed):
    """Return random steps: how gradients are cleared, and passes with the layers they omit."""
    draw = random.Random(seed)
    return [
        (
            draw.choice(list(CLEARED)),
            [
                (draw.random() < 0.4, draw.choice([None, None, 0, 1]))
                for _ in range(draw.randint(1, 4))
            ],
        )
        for _ in range(6)
    ]


def go_along(rank, seed, cap):
    """Return the largest difference from plain averaging, over all steps and parameters."""
    sys.path.insert(0, str(PHASE))
    from template_trainer import BucketedGradientAverager

    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)]).double()
    plain = copy.deepcopy(model)
    averager = BucketedGradientAverager(model, cap)
    torch.manual_seed(1 + rank)
    worst = 0.0
    for cleared, passes in steps_of(seed):
        inputs = torch.randn(2, 5, dtype=torch.float64)
        for net in (model, plain):
            if CLEARED[cleared] is not None:
                net.zero_grad(**CLEARED[cleared])
        for silent, unused_on in passes:
            for net in (model, plain):
                used = net[:1] if unused_on == rank else net
                with averager.no_sync() if silent and net is model else nullcontext():
                    sum(layer(inputs).square().sum() for layer in used).backward()
        averager.finish()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            mean = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad.clone()
            dist.all_reduce(mean)
            theirs.grad = mean / dist.get_world_size()
            worst = max(worst, (ours.grad - theirs.grad).abs().max().item())
    return worst


@pytest.mark.parametrize("cap", [1e-4, 25.0])
@pytest.mark.parametrize("seed", range(8))
def test_gradients_are_the_mean_after_any_earlier_passes(seed, cap):
    seen = run_ranks(go_along, 2, seed=seed, cap=cap)

    assert max(seen) < 1e-9  # for float64, gradients below 1,000 and sums of a few dozen
