"""One optimizer step from several microbatches: when gradients travel, and how much of them."""

import torch
import torch.distributed as dist
from torch import nn

from gradsync.diagnose.buckets import between, bucket_sizes, in_objects, lanes
from gradsync.testing import by_rank, check, exercise

GUIDE = "Gradient accumulation"
LEARNING_RATE, MOMENTUM = 0.2, 0.9
UNEQUAL = [[5, 2, 1], [1, 4, 3], [3, 1, 4]]  # samples, by rank and microbatch


class Net(nn.Module):
    """A classifier of float64 with a frozen layer; 104 trainable elements."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.first = nn.Linear(5, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 7, bias=False)
        self.double()

    def forward(self, inputs):
        return self.last(torch.tanh(self.frozen(torch.tanh(self.first(inputs)))))


def draw(rng, steps, sizes):
    """Return inputs (step, rank, sample, 5) and targets, whose losses vary a lot."""
    shape = (steps, len(sizes), sum(sizes[0]))
    return rng.standard_normal((*shape, 5)) * 3, rng.integers(0, 7, shape)


def mark(group, number):
    """Leave a mark among the rank's collectives; see `gradsync.diagnose.buckets`."""
    dist.all_reduce(torch.zeros(1, 1, number, dtype=torch.int8), group=group)


def probe_steps(rank, trainer, inputs, targets, sizes):
    """Take a step on each of this rank's batches.

    Mark 1 is left before each step, mark 2 in the loss of its last microbatch, mark 3 at its end.
    """
    group = dist.new_group()
    model = Net()
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, momentum=MOMENTUM
    )
    averager = trainer.BucketedGradientAverager(model)
    calls = []

    def loss_fn(outputs, labels):
        calls.append(len(labels))
        if len(calls) == len(sizes[rank]):
            mark(group, 2)
        return nn.functional.cross_entropy(outputs, labels)

    for x, y in zip(inputs, targets, strict=True):
        parts = (torch.from_numpy(part[rank]).split(sizes[rank]) for part in (x, y))
        microbatches = list(zip(*parts, strict=True))
        calls.clear()
        mark(group, 1)
        trainer.train_step_accumulated(model, microbatches, loss_fn, optimizer, averager)
        mark(group, 3)


@exercise("phase2/train_step_accumulated", points=2)
def test_gradients_are_exchanged_once(ranks, rng):
    """Gradients travel once a step, after the last microbatch's forward pass."""
    inputs, targets = draw(rng, 1, UNEQUAL)

    seen = ranks(
        probe_steps, 3, inputs=by_rank(inputs, 1), targets=by_rank(targets, 1), sizes=UNEQUAL
    )

    elements = sum(p.numel() for p in Net().parameters() if p.requires_grad)
    case = f"a step of {len(UNEQUAL[0])} microbatches, {elements} elements of gradients"
    early = [rank for rank in range(3) if lanes(between(seen, rank, (1, 2)))]
    check(
        not early,
        "synchronised-too-often",
        f"{case}: gradients are sent before the last microbatch has come to its loss. Until then "
        f"they only accumulate, under no_sync() (GUIDELINES, {GUIDE})",
        ranks=early,
        guide=GUIDE,
    )
    sent = [sum(bucket_sizes(between(seen, rank, (1, 3)))) for rank in range(3)]
    check(
        in_objects(seen) or max(sent) <= 1.5 * elements,
        "synchronised-too-often",
        f"{case}: rank 0 sends {sent[0]} elements. All microbatches together are synchronised "
        f"once, with the last one (GUIDELINES, {GUIDE})",
        ranks=range(3),
        guide=GUIDE,
    )
    check(
        min(sent) > 0,
        "gradients-not-synchronised",
        f"{case}: no collective carries any (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
