"""Training without interruption: as in phase 1, and in microbatches."""

import pytest
import torch
from torch import nn

from gradsync.diagnose.training import (
    models_differ,
    other_lines,
    other_numbers,
    other_rows,
    other_samples,
    training_mistakes,
)
from gradsync.diagnose.values import close
from gradsync.probes import Info
from gradsync.probes.training import draw_samples, one_step, spied_training
from gradsync.testing import (
    assert_on_every_rank,
    check,
    differs_from_one_process,
    each,
    exercise,
    hold,
)

SAMPLER, STEP, GUIDE = "Resumable shares", "Gradient accumulation", "Resuming"


class Net(nn.Module):
    """A classifier of float64 that notes how many samples it is trained on at once."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("shift", torch.rand(4).double())
        self.sizes = []

    def forward(self, inputs):
        if self.training:
            self.sizes.append(len(inputs))
        return self.layer(inputs - self.shift)


def probe_train(rank, world_size, trainer, data, seeds, seed=3, **options):
    """Train on `data` from weights of its own seed; say what came of it."""
    info, model = Info(rank, world_size), Net(seeds[rank])
    seen = spied_training(trainer.train, info, model, data, seed=seed, **options)
    return {**seen, "sizes": model.sizes}


def train_in_turn(ranks, world_size, *calls):
    """Train once for each of these options, in the same processes; return what each came to."""

    def probe(rank, world_size, trainer):
        return [probe_train(rank, world_size, trainer, **options) for options in calls]

    seen = ranks(probe, world_size)
    return [each(seen, lambda value, n=n: value[n]) for n in range(len(calls))]


@exercise("phase2/train", points=0.75)
def test_every_epoch_goes_its_own_way_over_the_ranks_shares(ranks, rng):
    """Each rank trains on its share, in another order in another epoch, and with another seed."""
    data = draw_samples(rng, 40), draw_samples(rng, 4)
    options = {"data": data, "seeds": [1, 1], "batch_size": 4}
    other = {**options, "epochs": 1, "seed": 4}

    seen, reseeded = train_in_turn(ranks, 2, {**options, "epochs": 2}, other)

    headings = {"shares": SAMPLER, "epochs": SAMPLER, "guide": GUIDE}
    hold(other_samples(seen, reseeded, samples=40, **headings))


@exercise("phase2/train", points=0.75)
def test_ranks_that_start_apart_end_as_one_process(ranks, rng):
    """From rank 0's weights, a step on all ranks' samples ends where one process would."""
    data, seeds = (draw_samples(rng, 12), draw_samples(rng, 6)), [11, 5, 6]

    seen = ranks(probe_train, 3, data=data, seeds=seeds, epochs=1, batch_size=4)

    def weights_after(rank, scale):
        return one_step(Net(seeds[rank]), *data, scale=scale).weights

    hold(models_differ(seen, GUIDE))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        weights_after(0, 1.0),
        mistakes=training_mistakes(
            weights_after,
            case="3 ranks with 4 samples each, one epoch of one step,",
            world_size=3,
            guide=GUIDE,
            mean=GUIDE,
            start=GUIDE,
        ),
    )


@exercise("phase2/train", points=0.75)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """An entry an epoch, with the mean train loss, and the val numbers after the training."""
    data = draw_samples(rng, 8), draw_samples(rng, 7)  # to validate, 4 on one rank, 3 on the other
    options = {"data": data, "seeds": [11, 11], "batch_size": 4}

    once, thrice = train_in_turn(ranks, 2, *({**options, "epochs": epochs} for epochs in (1, 3)))

    right = one_step(Net(11), *data)
    hold(other_rows(thrice, GUIDE))
    headings = {"guide": GUIDE, "evaluation": "Evaluation without padding"}
    hold(other_numbers(once, right.history, right.loss_before, **headings))


@exercise("phase2/train", points=0.25)
def test_rank_0_alone_prints(ranks, rng):
    """Rank 0 prints a line an epoch, the others nothing."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)

    seen = ranks(probe_train, 3, data=data, seeds=[1, 1, 1], epochs=3, batch_size=4)

    hold(other_lines(seen, 3, GUIDE))


@pytest.mark.parametrize(("world_size", "parts"), [(2, 3), (1, 4)])
@exercise("phase2/train", points=1)
def test_microbatches_change_nothing_but_the_memory(ranks, rng, world_size, parts):
    """With accumulation a batch comes in parts, and training ends as it does without."""
    data = draw_samples(rng, 6 * world_size), draw_samples(rng, 4)  # in batches of 4 and of 2
    options = {"data": data, "seeds": [11, 11], "epochs": 2, "batch_size": 4}

    in_parts = {**options, "accumulation_steps": parts}
    plain, seen = train_in_turn(ranks, world_size, options, in_parts)

    sizes = seen[0]["sizes"]
    check(
        len(sizes) > 0,
        "does-not-learn",
        f"train returned without having run the model on a single sample (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        max(sizes) <= -(-4 // parts),
        "accumulation-ignored",
        f"with batches of 4 samples in {parts} microbatches the model is trained on "
        f"{max(sizes)} samples at once: the parts are to be of equal size, or nearly, "
        f"so that each takes a {parts}th of the memory (GUIDELINES, {STEP})",
        ranks=range(world_size),
        guide=STEP,
    )
    hold(models_differ(seen, GUIDE))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        plain[0]["weights"],
        mistakes=[
            differs_from_one_process(
                STEP, f"batches of 4 samples, and of 2, taken in {parts} microbatches"
            )
        ],
    )
    losses = each(seen, lambda value: [row["train_loss"] for row in value["history"]])
    right = [row["train_loss"] for row in plain[0]["history"]]
    check(
        all(close(own, right) for own in losses),
        "microbatch-mean-unweighted",
        f"`train_loss` with {parts} microbatches a batch, {losses[0]} by epoch, is not what it is "
        f"without: microbatches weigh by their samples (GUIDELINES, {STEP})",
        guide=STEP,
    )
