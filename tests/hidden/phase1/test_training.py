"""Everything together: the training loop."""

import contextlib
import io

import torch
from torch import nn
from torch.utils.data import Dataset

from gradsync.diagnose.shares import some
from gradsync.diagnose.values import close
from gradsync.testing import (
    assert_on_every_rank,
    check,
    differs_from_one_process,
    each,
    exercise,
    would_be,
)

GUIDE, MODEL = "Training", "Model synchronisation"
HISTORY = {
    "train_loss": "the mean loss over the samples trained on, as they were when each batch came",
    "val_loss": "the loss over the validation samples after the epoch's training",
    "val_accuracy": "the accuracy, from 0 to 1, over the validation samples after the training",
}
KEYS = {"epoch", *HISTORY}


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 3).double()


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def info_of(trainer, rank, world_size):
    return trainer.RankInfo(rank, world_size, 0, "127.0.0.1", 29500)  # each on its own machine


def draw(rng, count):
    return rng.standard_normal((count, 4)), rng.integers(0, 3, count)


def probe_train(rank, world_size, trainer, data, seeds, seed=3, **options):
    """Train on `data` from weights of its own seed; say what came of it."""
    train_set, val_set = (Numbered(*part) for part in data)
    info, model = info_of(trainer, rank, world_size), make_model(seeds[rank])
    said = io.StringIO()  # what it prints: a warning of torch's on stderr is not its doing
    with contextlib.redirect_stdout(said):
        history = trainer.train(info, model, train_set, val_set, lr=0.5, seed=seed, **options)
    return {
        "weights": weights_of(model),
        "history": [{key: float(value) for key, value in dict(row).items()} for row in history],
        "drawn": train_set.drawn,
        "lines": [line for line in said.getvalue().splitlines() if line.strip()],
    }


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
            param.sub_(lr * scale * param.grad)
        outputs = model(val_inputs)
    after = nn.functional.cross_entropy(outputs, val_targets).item()
    accuracy = (outputs.argmax(1) == val_targets).double().mean().item()
    return weights_of(model), loss.item(), after, accuracy, before


@exercise("phase1/train", points=2)
def test_every_epoch_goes_its_own_way_over_the_ranks_shares(ranks, rng):
    """Each rank trains on its share, in another order in another epoch, and with another seed."""
    data = draw(rng, 40), draw(rng, 4)
    options = {"data": data, "seeds": [1, 1], "batch_size": 4}

    reseeded = ranks(probe_train, 2, epochs=1, seed=4, **options)
    seen = ranks(probe_train, 2, epochs=2, **options)

    drawn = [value["drawn"] for value in seen]
    first = [indices[:20] for indices in drawn]
    second = [indices[len(indices) // 2 :][:20] for indices in drawn]
    both = set(first[0]) & set(first[1])
    check(
        len(both) < 20 or len(drawn[0]) > 40,
        "same-shard-on-every-rank",
        f"in the first epoch both ranks train on the same samples, {some(sorted(both))}: each is "
        "to have its own share (GUIDELINES, Data loaders)",
        ranks=range(2),
        guide="Data loaders",
    )
    check(
        sorted(first[0] + first[1]) == list(range(40)),
        "sampler-not-used",
        "in the first epoch the ranks do not train on shares that are disjoint and cover all 40 "
        f"samples: of their first 20, {len(both)} are the same (GUIDELINES, Data loaders)",
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
    check(
        first != [value["drawn"][:20] for value in reseeded],
        "seed-ignored",
        f"with another `seed` train goes over the samples in the same order (GUIDELINES, {GUIDE})",
        ranks=range(2),
        guide=GUIDE,
    )


@exercise("phase1/train", points=2)
def test_ranks_that_start_apart_end_as_one_process(ranks, rng):
    """From rank 0's weights, a step on all ranks' samples ends where one process would."""
    data = draw(rng, 12), draw(rng, 6)
    options = {"data": data, "seeds": [11, 5, 6], "epochs": 1, "batch_size": 4}

    seen = ranks(probe_train, 3, **options)

    check(
        len({str(value["weights"]) for value in seen}) == 1,
        "models-differ",
        "after training the ranks have different models: they must start from rank 0's weights "
        f"and make the same steps (GUIDELINES, {MODEL})",
        ranks=range(3),
        guide=MODEL,
    )
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        one_step(11, *data[0], data[1])[0],
        mistakes=training_mistakes(data),
    )


def training_mistakes(data):
    """Return the rules that know a mistake by the weights that 3 ranks end with."""

    def rule(code, text, guide, seed=11, scale=1.0):
        wrong = one_step(seed, *data[0], data[1], scale=scale)[0]
        return would_be([wrong] * 3, code, text, guide)

    other = "training started from rank {}'s weights, not from rank 0's"
    return [
        rule(
            "sum-not-mean",
            "the step was 3 times too long, as if gradients were summed over 3 ranks and not "
            "averaged, or the learning rate multiplied by their number",
            "Gradient aggregation",
            scale=3.0,
        ),
        rule(
            "does-not-learn",
            "after an epoch the model's weights are those from before: no step was taken, or of "
            "other parameters than the model's",
            GUIDE,
            scale=0.0,
        ),
        rule("wrong-source", other.format(1), MODEL, seed=5),
        rule("wrong-source", other.format(2), MODEL, seed=6),
        differs_from_one_process(GUIDE, "3 ranks with 4 samples each, one epoch of one step,"),
    ]


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
            "wrong-signature",
            f"train over 3 epochs returns {rows}: an entry an epoch is wanted, counted from 0, "
            f"with {', '.join(sorted(KEYS))} (GUIDELINES, {GUIDE})",
            guide=GUIDE,
        )
    _, train_loss, val_loss, accuracy, before = one_step(11, *data[0], data[1])
    right = {"epoch": 0, "train_loss": train_loss, "val_loss": val_loss, "val_accuracy": accuracy}
    row = once[0]["history"][0]
    for name, text in HISTORY.items():
        early = ", but that of the model before it" if close(row[name], before) else ""
        check(
            all(close(value["history"][0][name], right[name]) for value in once),
            "differs-from-single-process",
            f"`{name}` of the first epoch is {row[name]:.6g} on rank 0: that is not {text}{early} "
            f"(GUIDELINES, {GUIDE})",
            ranks=range(2),
            guide=GUIDE,
        )


@exercise("phase1/train", points=1)
def test_rank_0_alone_prints(ranks, rng):
    """Rank 0 prints a line an epoch, the others nothing."""
    data = draw(rng, 8), draw(rng, 6)
    options = {"data": data, "seeds": [1, 1, 1], "epochs": 3, "batch_size": 4}

    seen = ranks(probe_train, 3, **options)

    printed = [value["lines"] for value in seen]
    loud = [rank for rank in (1, 2) if printed[rank]]
    check(
        not loud,
        "every-rank-prints",
        f"rank {' and '.join(map(str, loud))} printed during training, for one "
        f"{printed[max(loud, default=0)][:1]}: with hundreds of ranks nobody could read that. "
        f"Rank 0 speaks for all (GUIDELINES, {GUIDE})",
        ranks=loud,
        guide=GUIDE,
    )
    check(
        len(printed[0]) == 3,
        "every-rank-prints",
        f"rank 0 printed {len(printed[0])} lines during 3 epochs: a line an epoch is wanted "
        f"(GUIDELINES, {GUIDE})",
        ranks=[0],
        guide=GUIDE,
    )
