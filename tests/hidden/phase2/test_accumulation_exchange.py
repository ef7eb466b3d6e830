"""One optimizer step from several microbatches: when gradients are sent, and how many."""

import torch
from torch import nn

from gradsync.testing import by_rank, exercise, raise_mistake
from support.probes.accumulation import UNEQUAL, Net, draw, optimizer_of, watched_steps
from support.rules.accumulation import stepped_otherwise

SIZES = UNEQUAL[:2]


def probe_steps(rank, trainer, inputs, targets, sizes):
    """Take a step on each of this rank's batches; see `watched_steps`."""
    model = Net()
    steps = []
    for x, y in zip(inputs, targets, strict=True):
        parts = (torch.from_numpy(part[rank]).split(sizes[rank]) for part in (x, y))
        steps.append(list(zip(*parts, strict=True)))
    return watched_steps(trainer, model, optimizer_of(model), steps, nn.functional.cross_entropy)


@exercise("phase2/train_step_accumulated", points=2)
def test_gradients_are_exchanged_once(ranks, rng):
    """Gradients are sent once in each step, after the last microbatch's forward pass."""
    inputs, targets = draw(rng, 1, SIZES)

    given = {"inputs": by_rank(inputs, 1), "targets": by_rank(targets, 1), "sizes": SIZES}
    seen = ranks(probe_steps, 2, **given)

    elements = {n: p.numel() for n, p in Net().named_parameters() if p.requires_grad}
    raise_mistake(stepped_otherwise(seen, SIZES, elements))
