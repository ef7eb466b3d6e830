"""Training without interruption: as in phase 1, and in microbatches."""

import contextlib
import io

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from gradsync.diagnose.shares import some
from gradsync.diagnose.values import close
from gradsync.probes import Info
from gradsync.testing import (
    assert_on_every_rank,
    check,
    differs_from_one_process,
    each,
    exercise,
    would_be,
)

SAMPLER, STEP, GUIDE = "Resumable shares", "Gradient accumulation", "Resuming"
HISTORY = {
    "train_loss": "the mean loss over the samples trained on, as they were when each batch came",
    "val_loss": "the loss over the validation samples after the epoch's training",
    "val_accuracy": "the accuracy, from 0 to 1, over the validation samples after the training",
}
KEYS = {"epoch", *HISTORY}


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


class Numbered(Dataset):
    """Samples that note in which order they are asked for."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = torch.from_numpy(inputs), torch.from_numpy(targets)
        self.drawn = []

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        self.drawn.append(int(index))
        return self.inputs[index], self.targets[index]


def draw(rng, count):
    return rng.standard_normal((count, 4)), rng.integers(0, 3, count)


def probe_train(rank, world_size, trainer, data, seeds, seed=3, **options):
    """Train on `data` from weights of its own seed; say what came of it."""
    train_set, val_set = (Numbered(*part) for part in data)
    info, model = Info(rank, world_size), Net(seeds[rank])
    with contextlib.redirect_stdout(io.StringIO()) as said:  # torch's warnings go to stderr
        history = trainer.train(info, model, train_set, val_set, lr=0.5, seed=seed, **options)
    return {
        "weights": dict(model.state_dict()),
        "history": [{key: float(value) for key, value in dict(row).items()} for row in history],
        "drawn": train_set.drawn,
        "sizes": model.sizes,
        "lines": [line for line in said.getvalue().splitlines() if line.strip()],
    }


def train_in_turn(ranks, world_size, *calls):
    """Train once for each of these options, in the same processes; return what each came to."""

    def probe(rank, world_size, trainer):
        return [probe_train(rank, world_size, trainer, **options) for options in calls]

    seen = ranks(probe, world_size)
    return [each(seen, lambda value, n=n: value[n]) for n in range(len(calls))]


def one_step(seed, inputs, targets, val, lr=0.5, scale=1.0):
    """Take the epoch's only step in one process; return weights, train loss, val loss, accuracy."""
    model = Net(seed)
    inputs, targets, val_inputs, val_targets = map(torch.from_numpy, (inputs, targets, *val))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    before = nn.functional.cross_entropy(model(val_inputs), val_targets).item()
    loss.backward()
    with torch.no_grad():
        for param in model.parameters():
            param.sub_(lr * scale * param.grad)
        outputs = model(val_inputs)
    after = nn.functional.cross_entropy(outputs, val_targets).item()
    accuracy = (outputs.argmax(1) == val_targets).double().mean().item()
    return dict(model.state_dict()), loss.item(), after, accuracy, before


def hold(holds, code, text, guide=GUIDE, ranks=()):
    check(holds, code, f"{text} (GUIDELINES, {guide})", ranks=ranks, guide=guide)


@exercise("phase2/train", points=0.75)
def test_every_epoch_goes_its_own_way_over_the_ranks_shares(ranks, rng):
    """Each rank trains on its share, in another order in another epoch, and with another seed."""
    data = draw(rng, 40), draw(rng, 4)
    options = {"data": data, "seeds": [1, 1], "batch_size": 4}
    other = {**options, "epochs": 1, "seed": 4}

    seen, reseeded = train_in_turn(ranks, 2, {**options, "epochs": 2}, other)

    drawn = [value["drawn"] for value in seen]
    first = [indices[:20] for indices in drawn]
    second = [indices[len(indices) // 2 :][:20] for indices in drawn]
    both = set(first[0]) & set(first[1])
    hold(
        len(both) < 20 or len(drawn[0]) > 40,
        "same-shard-on-every-rank",
        f"in the first epoch both ranks train on the same samples, {some(sorted(both))}: each is "
        "to have its own share",
        SAMPLER,
    )
    hold(
        sorted(first[0] + first[1]) == list(range(40)),
        "sampler-not-used",
        "in the first epoch the ranks do not train on shares that are disjoint and cover all 40 "
        f"samples: of their first 20, {len(both)} are the same",
        SAMPLER,
    )
    hold(
        first != second,
        "epoch-not-set",
        "the second epoch goes over the samples in the order of the first: nobody told the "
        "sampler that a new epoch began",
        SAMPLER,
    )
    hold(
        first != [value["drawn"][:20] for value in reseeded],
        "seed-ignored",
        "with another `seed` train goes over the samples in the same order",
    )


@exercise("phase2/train", points=0.75)
def test_ranks_that_start_apart_end_as_one_process(ranks, rng):
    """From rank 0's weights, a step on all ranks' samples ends where one process would."""
    data = draw(rng, 12), draw(rng, 6)
    options = {"data": data, "seeds": [11, 5, 6], "epochs": 1, "batch_size": 4}

    seen = ranks(probe_train, 3, **options)

    hold_same_models(seen)
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        one_step(11, *data[0], data[1])[0],
        mistakes=training_mistakes(data),
    )


def hold_same_models(seen):
    hold(
        all(close(value["weights"], seen[0]["weights"]) for value in seen),
        "models-differ",
        "after training the ranks have different models: they must start from rank 0's weights "
        "and make the same steps",
        ranks=range(len(seen)),
    )


def training_mistakes(data):
    """Return the rules that know a mistake by the weights that 3 ranks end with."""

    def rule(code, text, seed=11, scale=1.0):
        wrong = one_step(seed, *data[0], data[1], scale=scale)[0]
        return would_be([wrong] * 3, code, text, GUIDE)

    other = "training started from rank {}'s weights"
    return [
        rule(
            "sum-not-mean",
            "the step was 3 times too long, as if gradients were summed over 3 ranks and not "
            "averaged, or the learning rate multiplied by their number",
            scale=3.0,
        ),
        rule(
            "does-not-learn",
            "after an epoch the model's weights are those from before: no step was taken, or of "
            "other parameters than the model's",
            scale=0.0,
        ),
        *(rule("wrong-source", other.format(r), seed=s) for r, s in ((1, 5), (2, 6))),
        differs_from_one_process(GUIDE, "3 ranks with 4 samples each, one epoch of one step,"),
    ]


@exercise("phase2/train", points=0.75)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """An entry an epoch, with the mean train loss, and the val numbers after the training."""
    data = draw(rng, 8), draw(rng, 7)  # 4 validation samples on one rank, 3 on the other
    options = {"data": data, "seeds": [11, 11], "batch_size": 4}

    once, thrice = train_in_turn(ranks, 2, *({**options, "epochs": epochs} for epochs in (1, 3)))

    for value in thrice:
        rows = value["history"]
        hold(
            all(set(row) == KEYS for row in rows) and [row["epoch"] for row in rows] == [0, 1, 2],
            "wrong-signature",
            f"train over 3 epochs returns {rows}: an entry an epoch is wanted, counted from 0, "
            f"with {', '.join(sorted(KEYS))}",
        )
    _, train_loss, val_loss, accuracy, before = one_step(11, *data[0], data[1])
    right = {"epoch": 0, "train_loss": train_loss, "val_loss": val_loss, "val_accuracy": accuracy}
    row = once[0]["history"][0]
    for name, text in HISTORY.items():
        early = ", but that of the model before it" if close(row[name], before) else ""
        hold(
            all(close(value["history"][0][name], right[name]) for value in once),
            "differs-from-single-process",
            f"`{name}` of the first epoch is {row[name]:.6g} on rank 0: that is not {text}{early}",
            GUIDE if name == "train_loss" else "Evaluation without padding",
            ranks=range(2),
        )


@exercise("phase2/train", points=0.25)
def test_rank_0_alone_prints(ranks, rng):
    """Rank 0 prints a line an epoch, the others nothing."""
    data = draw(rng, 8), draw(rng, 6)

    seen = ranks(probe_train, 3, data=data, seeds=[1, 1, 1], epochs=3, batch_size=4)

    printed = [value["lines"] for value in seen]
    loud = [rank for rank in (1, 2) if printed[rank]]
    hold(
        not loud,
        "every-rank-prints",
        f"rank {' and '.join(map(str, loud))} printed during training, for one "
        f"{printed[max(loud, default=0)][:1]}: with hundreds of ranks nobody could read that. "
        "Rank 0 speaks for all",
        ranks=loud,
    )
    hold(
        len(printed[0]) == 3,
        "every-rank-prints",
        f"rank 0 printed {len(printed[0])} lines during 3 epochs: a line an epoch is wanted",
        ranks=[0],
    )


@pytest.mark.parametrize(("world_size", "parts"), [(2, 3), (1, 4)])
@exercise("phase2/train", points=1)
def test_microbatches_change_nothing_but_the_memory(ranks, rng, world_size, parts):
    """With accumulation a batch comes in parts, and training ends as it does without."""
    data = draw(rng, 6 * world_size), draw(rng, 4)  # a rank's batches are of 4 samples and of 2
    options = {"data": data, "seeds": [11, 11], "epochs": 2, "batch_size": 4}

    in_parts = {**options, "accumulation_steps": parts}
    plain, seen = train_in_turn(ranks, world_size, options, in_parts)

    sizes = seen[0]["sizes"]
    hold(sizes, "does-not-learn", "train returned without having run the model on a single sample")
    hold(
        max(sizes) <= -(-4 // parts),
        "accumulation-ignored",
        f"with batches of 4 samples in {parts} microbatches the model is trained on "
        f"{max(sizes)} samples at once: the parts are to be of equal size, or nearly, "
        f"so that each takes a {parts}th of the memory",
        STEP,
        ranks=range(world_size),
    )
    hold_same_models(seen)
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
    hold(
        all(close(own, right) for own in losses),
        "microbatch-mean-unweighted",
        f"`train_loss` with {parts} microbatches a batch, {losses[0]} by epoch, is not what it is "
        "without: microbatches weigh by their samples",
        STEP,
    )
