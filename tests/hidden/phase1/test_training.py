"""Everything together: the training loop, and a small CNN that learns handwritten digits."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from gradsync.data import digits
from gradsync.model import SmallCNN
from gradsync.testing import (
    assert_on_every_rank,
    check,
    differs_from_one_process,
    exercise,
    would_be,
)

GUIDE, MODEL = "Training", "Model synchronisation"
KEYS = {"epoch", "train_loss", "val_loss", "val_accuracy"}


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 3).double()


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def info_of(trainer, rank, world_size):
    return trainer.RankInfo(rank, world_size, rank, "127.0.0.1", 29500)


def draw(rng, count):
    return rng.standard_normal((count, 4)), rng.integers(0, 3, count)


def probe_train(rank, world_size, trainer, data, seeds, epochs, batch_size, order=False):
    """Train on `data` from weights of its own seed; return weights, history and what was drawn."""
    train_set, val_set = (Numbered(*part) for part in data)
    model = make_model(seeds[rank])
    history = trainer.train(
        info_of(trainer, rank, world_size),
        model,
        train_set,
        val_set,
        epochs=epochs,
        batch_size=batch_size,
        lr=0.5,
        seed=3,
    )
    history = [{key: float(value) for key, value in dict(row).items()} for row in history]
    return {"weights": weights_of(model), "history": history, "drawn": train_set.drawn}


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


def one_step(seed, inputs, targets, val, lr=0.5, scale=1.0):
    """Take the epoch's only step in one process; return weights, train loss, val loss, accuracy."""
    model = make_model(seed)
    inputs, targets, val_inputs, val_targets = map(torch.from_numpy, (inputs, targets, *val))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    before = nn.functional.cross_entropy(model(val_inputs), val_targets).item()
    loss.backward()
    with torch.no_grad():
        for param in model.parameters():
            param -= lr * scale * param.grad
        outputs = model(val_inputs)
    after = nn.functional.cross_entropy(outputs, val_targets).item()
    accuracy = (outputs.argmax(1) == val_targets).double().mean().item()
    return weights_of(model), loss.item(), after, accuracy, before


@exercise("phase1/train", points=2)
def test_ranks_that_start_apart_end_as_one_process(ranks, rng):
    """From rank 0's weights, a step on all ranks' samples ends where one process would."""
    data = draw(rng, 12), draw(rng, 6)
    options = {"data": data, "seeds": [11, 5, 6], "epochs": 1, "batch_size": 4}

    seen = ranks(probe_train, 3, **options)

    weights = one_step(11, *data[0], data[1])[0]
    summed = one_step(11, *data[0], data[1], scale=3.0)[0]
    check(
        len({str(value["weights"]) for value in seen}) == 1,
        "models-differ",
        "after training the ranks have different models: they must start from rank 0's weights "
        f"and make the same steps (GUIDELINES, {MODEL})",
        ranks=range(3),
        guide=MODEL,
    )
    assert_on_every_rank(
        only(seen, "weights"),
        weights,
        mistakes=[
            would_be(
                [summed] * 3,
                "sum-not-mean",
                "the step was 3 times too long: gradients were summed over 3 ranks, not averaged",
                "Gradient aggregation",
            ),
            *[
                would_be(
                    [one_step(seed, *data[0], data[1])[0]] * 3,
                    "wrong-source",
                    "training started from another rank's weights than rank 0's",
                    MODEL,
                )
                for seed in (5, 6)
            ],
            differs_from_one_process(GUIDE, "3 ranks with 4 samples each, one epoch of one step,"),
        ],
    )


@exercise("phase1/train", points=2)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """An entry an epoch, with the mean train loss, and the val numbers after the training."""
    data = draw(rng, 8), draw(rng, 6)
    options = {"data": data, "seeds": [11, 11], "batch_size": 4}

    once = ranks(probe_train, 2, epochs=1, **options)
    thrice = ranks(probe_train, 2, epochs=3, **options)

    for value in thrice:
        rows = value["history"]
        check(
            all(set(row) == KEYS for row in rows) and [row["epoch"] for row in rows] == [0, 1, 2],
            "exception",
            f"train over 3 epochs returns {rows}: an entry an epoch is wanted, counted from 0, "
            f"with {', '.join(sorted(KEYS))} (GUIDELINES, {GUIDE})",
            guide=GUIDE,
        )
    _, train_loss, val_loss, accuracy, before = one_step(11, *data[0], data[1])
    right = {"epoch": 0, "train_loss": train_loss, "val_loss": val_loss, "val_accuracy": accuracy}
    too_early = [{**right, "val_loss": before}]
    assert_on_every_rank(
        only(once, "history", drop="val_accuracy"),
        [without(right, "val_accuracy")],
        mistakes=[
            would_be(
                [[without(row, "val_accuracy") for row in too_early]] * 2,
                "differs-from-single-process",
                "the val loss is that of the model before the epoch's training",
                GUIDE,
            )
        ],
        otherwise=f"the history of one epoch is {once[0]['history']} on rank 0: those are not the "
        "mean train loss, and the val loss after the epoch's training",
    )
    assert_on_every_rank(
        only(once, "history"),
        [right],
        otherwise=f"the history of one epoch is {once[0]['history']} on rank 0: that is not the val "
        "accuracy, from 0 to 1, after the epoch's training",
    )


def without(row, key):
    return {name: value for name, value in row.items() if name != key}


def only(seen, key, drop=None):
    """Return the observation with one entry of every rank's value in its place."""
    from dataclasses import replace

    values = [value[key] for value in seen]
    if drop is not None:
        values = [[without(row, drop) for row in rows] for rows in values]
    return replace(seen, values=tuple(values))


@exercise("phase1/train", points=2)
def test_every_epoch_goes_its_own_way_over_the_ranks_shares(ranks, rng):
    """Each rank trains on its share, in another order in another epoch."""
    data = draw(rng, 40), draw(rng, 4)
    options = {"data": data, "seeds": [1, 1], "epochs": 2, "batch_size": 4}

    seen = ranks(probe_train, 2, **options)

    first, second = ([value["drawn"][k * 20 : (k + 1) * 20] for value in seen] for k in (0, 1))
    check(
        set(first[0]) != set(first[1]) and sorted(first[0] + first[1]) == list(range(40)),
        "sampler-not-used",
        "in the first epoch the ranks do not train on shares that are disjoint and cover all 40 "
        f"samples: rank 0 drew {len(set(first[0]))} of them, rank 1 {len(set(first[1]))}, "
        f"{len(set(first[0]) & set(first[1]))} are the same (GUIDELINES, Data loaders)",
        ranks=range(2),
        guide="Data loaders",
    )
    check(
        first != second,
        "epoch-not-set",
        "the second epoch goes over the samples in the order of the first: nobody told the "
        "sampler that a new epoch began (GUIDELINES, Epochs and evaluation)",
        ranks=range(2),
        guide="Epochs and evaluation",
    )


@exercise("phase1/train", points=1)
def test_rank_0_alone_prints(ranks, rng):
    """Rank 0 prints a line an epoch, the others nothing."""
    data = draw(rng, 8), draw(rng, 6)
    options = {"data": data, "seeds": [1, 1, 1], "epochs": 3, "batch_size": 4}

    seen = ranks(probe_train, 3, **options)

    loud = [rank for rank in (1, 2) if seen.output[rank].strip()]
    check(
        not loud,
        "every-rank-prints",
        f"rank {', '.join(map(str, loud))} printed during training, {seen.output[-1][:80]!r}: with "
        f"hundreds of ranks nobody could read that. Rank 0 speaks for all (GUIDELINES, {GUIDE})",
        ranks=loud,
        guide=GUIDE,
    )
    lines = [line for line in seen.output[0].splitlines() if line.strip()]
    check(
        len(lines) == 3,
        "every-rank-prints",
        f"rank 0 printed {len(lines)} lines during 3 epochs: a line an epoch is wanted "
        f"(GUIDELINES, {GUIDE})",
        ranks=[0],
        guide=GUIDE,
    )


@pytest.fixture(scope="module")
def handwriting():
    return digits()


@exercise("phase1/train", points=5)
def test_it_learns_to_read_handwritten_digits(ranks, handwriting):
    """The small CNN, trained on 2 gloo ranks, reads held-out digits."""

    def probe(rank, world_size, trainer, train_part, test_part, epochs):
        torch.manual_seed(rank)
        model = SmallCNN()
        train_set, test_set = (
            TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
            for x, y in (train_part, test_part)
        )
        trainer.train(
            info_of(trainer, rank, world_size),
            model,
            train_set,
            test_set,
            epochs=epochs,
            batch_size=32,
            lr=0.1,
        )
        model.eval()
        with torch.no_grad():
            return model(test_set.tensors[0]).argmax(1).to(torch.uint8)

    train_set, test_set = handwriting.train.first(10_000), handwriting.test.first(2_000)
    parts = [(part.images.numpy(), part.labels.numpy()) for part in (train_set, test_set)]
    goal, epochs = (0.97, 2) if handwriting.is_mnist else (0.95, 8)
    seen = ranks(probe, 2, train_part=parts[0], test_part=parts[1], epochs=epochs)

    accuracy = [float(np.mean(guesses.numpy() == parts[1][1])) for guesses in seen]
    check(
        min(accuracy) >= goal,
        "does-not-learn",
        f"after {epochs} epochs on {len(train_set)} digits the model reads {min(accuracy):.1%} of "
        f"{len(test_set)} that it has not seen: at least {goal:.0%} are wanted, and one process "
        f"gets there (GUIDELINES, {GUIDE})",
        ranks=range(2),
        guide=GUIDE,
    )
