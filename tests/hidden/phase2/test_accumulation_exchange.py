"""One optimizer step from several microbatches: when gradients are sent, and how many."""

from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import nn

from gradsync.testing import by_rank, check, exercise, raise_mistake
from gradsync.text import counted
from support.probes.accumulation import UNEQUAL, Net, draw, optimizer_of
from support.probes.bucket_marks import mark
from support.rules.buckets import between, bucket_sizes, in_objects, lanes
from support.rules.reductions import parameters_averaged

GUIDE = "Gradient accumulation"
SIZES = UNEQUAL[:2]


def open_blocks(averager):
    """Return a list with one item for each block of averager.no_sync() that is open."""
    blocks, plain = [], averager.no_sync

    @contextmanager
    def no_sync():
        with plain():
            blocks.append("no_sync")
            try:
                yield
            finally:
                blocks.pop()

    with suppress(AttributeError):  # a class with __slots__: its methods can't be replaced
        averager.no_sync = no_sync
    return blocks


def probe_steps(rank, trainer, inputs, targets, sizes):
    """Take a step on each of this rank's batches; return a description of the last one.

    `losses` is the number of calls of the loss function, `depths` is the number of open no_sync()
    blocks in each backward, and `trains` is whether the model stays in training mode. Mark 1 is
    made before each step, mark 2 in the loss of its last microbatch, and mark 3 at its end.
    """
    group = dist.new_group()
    model = Net()
    optimizer = optimizer_of(model)
    averager = trainer.BucketedGradientAverager(model)
    calls, depths, modes, blocks = [], [], [], open_blocks(averager)

    def loss_fn(outputs, labels):
        calls.append(len(labels))
        modes.append(model.training)
        if len(calls) == len(sizes[rank]):
            mark(group, 2)
        outputs.register_hook(lambda _: depths.append(len(blocks)))
        return nn.functional.cross_entropy(outputs, labels)

    for x, y in zip(inputs, targets, strict=True):
        parts = (torch.from_numpy(part[rank]).split(sizes[rank]) for part in (x, y))
        microbatches = list(zip(*parts, strict=True))
        calls.clear()
        depths.clear()
        mark(group, 1)
        trainer.train_step_accumulated(model, microbatches, loss_fn, optimizer, averager)
        mark(group, 3)
    return {"losses": len(calls), "depths": depths, "trains": all(modes) and model.training}


@exercise("phase2/train_step_accumulated", points=2)
def test_gradients_are_exchanged_once(ranks, rng):
    """Gradients are sent once in each step, after the last microbatch's forward pass."""
    inputs, targets = draw(rng, 1, SIZES)

    seen = ranks(
        probe_steps, 2, inputs=by_rank(inputs, 1), targets=by_rank(targets, 1), sizes=SIZES
    )

    elements = sum(p.numel() for p in Net().parameters() if p.requires_grad)
    case = f"A step with {len(SIZES[0])} microbatches and {elements} elements of gradients"
    losses = [value["losses"] for value in seen]
    whole = [rank for rank in range(2) if losses[rank] < len(SIZES[rank])]
    check(
        not whole,
        "accumulation-ignored",
        f"{case}: the loss is computed {counted(losses[whole[0]] if whole else 0, 'time')}. "
        "Microbatches that are joined need as much memory as the whole batch. Run forward and "
        "the loss for each microbatch separately.",
        ranks=whole,
        guide=GUIDE,
    )
    other = [rank for rank, value in enumerate(seen) if not value["trains"]]
    check(
        not other,
        "mode-not-restored",
        f"{case}: train_step_accumulated switches the model from training to evaluation mode, "
        "which changes dropout and BatchNorm. Leave the mode as it is.",
        ranks=other,
        guide=GUIDE,
    )
    early = [rank for rank in range(2) if lanes(between(seen, rank, (1, 2)))]
    check(
        not early,
        "synchronised-too-often",
        f"{case}: gradients are sent before the loss of the last microbatch is computed. Run the "
        "backward passes of all earlier microbatches under no_sync().",
        ranks=early,
        guide=GUIDE,
    )
    raise_mistake(
        parameters_averaged([name for name, _ in Net().named_parameters()], GUIDE)(seen, None)
    )
    late = [rank for rank, value in enumerate(seen) if any(value["depths"][-1:])]
    check(
        not late,
        "no-overlap",
        f"{case}: the last microbatch's backward also runs under no_sync(). Then no bucket is sent "
        "before finish(), and nothing overlaps with backward. Run the last backward outside of "
        "no_sync().",
        ranks=late,
        guide=GUIDE,
    )
    sent = [sum(bucket_sizes(between(seen, rank, (1, 3)))) for rank in range(2)]
    check(
        in_objects(seen) or max(sent) <= 1.5 * elements,
        "synchronised-too-often",
        f"{case}: rank 0 sends {sent[0]} elements. Send the gradients once for all microbatches "
        "together, with the last one.",
        ranks=range(2),
        guide=GUIDE,
    )
    check(
        min(sent) > 0,
        "gradients-not-synchronised",
        f"{case}: no collective sends gradients. Average them over the ranks.",
        guide=GUIDE,
    )
