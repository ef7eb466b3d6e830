"""A pass over the data: its order, its mean loss, and what it is evaluated to."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    check,
    exercise,
    would_be,
)

GUIDE = "Epochs and evaluation"


class Spy(nn.Module):
    """A linear classifier of float64 that notes how it was called."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 3).double()
        self.calls = []

    def forward(self, inputs):
        self.calls.append((self.training, torch.is_grad_enabled()))
        return self.layer(inputs)


class EarSampler(SequentialSampler):
    """Goes in order, and notes the epochs that it is told."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.told = []

    def set_epoch(self, epoch):
        self.told.append(epoch)


def draw(rng, counts):
    """Return, by rank, inputs (sample, 4) and targets (sample,): the losses vary a lot."""
    return [(rng.standard_normal((n, 4)) * 5, rng.integers(0, 3, n)) for n in counts]


def tensors(share):
    return TensorDataset(*(torch.from_numpy(part) for part in share))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3)


def probe_epoch(rank, trainer, shares, batch_size):
    model = Spy().eval()
    loader = DataLoader(tensors(shares[rank]), batch_size=batch_size)
    loss = trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), 0)
    return [float(loss), [bool(training) for training, _ in model.calls]]


def batch_losses(shares, batch_size, lr=0.3):
    """Return losses (batch, rank) and sizes (batch,) of an epoch with averaged gradients."""
    model = Spy()
    losses, sizes = [], []
    for start in range(0, len(shares[0][1]), batch_size):
        model.zero_grad()
        parts = [tuple(torch.from_numpy(p[start : start + batch_size]) for p in s) for s in shares]
        row = [nn.functional.cross_entropy(model(x), y) for x, y in parts]
        torch.stack(row).mean().backward()
        with torch.no_grad():
            for param in model.parameters():
                param -= lr * param.grad
        losses.append([loss.item() for loss in row])
        sizes.append(len(parts[0][1]))
    return np.array(losses), np.array(sizes)


@exercise("phase1/train_epoch", points=1.5)
def test_the_sampler_is_told_the_epoch(ranks, rng):
    """The loader's sampler hears the epoch before the pass."""

    def probe(rank, trainer, shares):
        data = tensors(shares[rank])
        loader = DataLoader(data, batch_size=4, sampler=EarSampler(data))
        model = Spy()
        trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), 5)
        return loader.sampler.told

    seen = ranks(probe, 2, shares=draw(rng, [8, 8]))

    check(
        all(told and told[-1] == 5 for told in seen),
        "epoch-not-set",
        f"train_epoch of epoch 5 told the loader's sampler {list(seen)} by rank: without it every "
        f"epoch has the order of the first (GUIDELINES, {GUIDE})",
        ranks=[rank for rank in range(2) if not seen[rank] or seen[rank][-1] != 5],
        guide=GUIDE,
    )


@exercise("phase1/train_epoch", points=2.5)
def test_the_epochs_loss_weighs_every_sample_alike(ranks, rng):
    """The mean is over all ranks' samples: a smaller last batch weighs less."""
    shares = draw(rng, [9, 9, 9])

    seen = ranks(probe_epoch, 3, shares=shares, batch_size=4)

    losses, sizes = batch_losses(shares, 4)  # (batch, rank), (batch,)
    by_rank = sizes @ losses / sizes.sum()  # (rank,)
    modes = [value[1] for value in seen]

    def wrong(values, code, text):
        return would_be([[v, m] for v, m in zip(values, modes)], code, text, GUIDE)

    assert_rank_by_rank(
        seen,
        [[by_rank.mean(), mode] for mode in modes],
        mistakes=[
            wrong(
                [losses.mean()] * 3,
                "mean-of-means",
                "train_epoch returns the mean of its batches' losses, though the last batch has 1 "
                "sample and the others 4: weigh each by its samples",
            ),
            wrong(
                by_rank,
                "loss-is-local",
                "train_epoch returns the loss of this rank's samples alone",
            ),
            wrong(
                losses.mean(0),
                "loss-is-local",
                "train_epoch returns the mean of this rank's batches alone",
            ),
        ],
        otherwise="train_epoch's loss is not the mean over all samples of all ranks, as they were "
        f"when each batch came: by rank {[value[0] for value in seen]}",
    )


@exercise("phase1/train_epoch", points=1)
def test_it_trains_in_training_mode(ranks, rng):
    """A model that comes in evaluation mode is switched to training mode."""
    seen = ranks(probe_epoch, 2, shares=draw(rng, [8, 8]), batch_size=4)

    check(
        all(all(modes) for _, modes in seen),
        "mode-not-restored",
        "train_epoch ran the model in evaluation mode: after an evaluation it has to be switched "
        f"back, or dropout and BatchNorm do not train (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/train_epoch", points=1)
def test_a_plain_loader_will_do(ranks, rng):
    """A loader whose sampler knows no epochs, as with one rank, is fine."""
    seen = ranks(probe_epoch, 1, shares=draw(rng, [8]), batch_size=4)

    check(len(seen[0][1]) == 2, "samples-dropped", "train_epoch left batches of a plain loader out")


def probe_evaluate(rank, trainer, shares):
    """Evaluate with rank-dependent shares and batches of 4; say what it did to the model."""
    model = Spy().train(rank != 1)
    model.layer.weight.grad = torch.full((3, 4), 2.0).double()
    loader = DataLoader(tensors(shares[rank]), batch_size=4)
    result = trainer.evaluate(model, loader, nn.CrossEntropyLoss())
    return {
        "result": {name: float(value) for name, value in dict(result).items()},
        "calls": [list(call) for call in model.calls],
        "kept_mode": [m.training for m in (model, model.layer)] == [rank != 1] * 2,
        "kept_grad": bool((model.layer.weight.grad == 2).all()) and model.layer.bias.grad is None,
    }


def evaluated(shares):
    """Return loss sums, correct answers and samples, of each rank's batches of 4."""
    model = Spy()
    rows = []
    for rank, share in enumerate(shares):
        for start in range(0, len(share[1]), 4):
            x, y = (torch.from_numpy(part[start : start + 4]) for part in share)
            outputs = model(x).detach()
            loss = nn.functional.cross_entropy(outputs, y).item() * len(y)
            rows.append([rank, loss, (outputs.argmax(1) == y).sum().item(), len(y)])
    return np.array(rows)  # (batch, [rank, loss sum, correct, samples])


def metrics(rows):
    loss, correct, samples = rows[:, 1:].sum(0)
    return {"loss": loss / samples, "accuracy": correct / samples, "samples": samples}


@exercise("phase1/evaluate", points=3.5)
def test_ranks_and_batches_weigh_by_their_samples(ranks, rng):
    """Sums over all ranks: of unequal shares, a smaller last batch, and a rank with nothing."""
    shares = draw(rng, [11, 2, 0, 6])

    seen = ranks(probe_evaluate, 4, shares=shares)

    rows = evaluated(shares)
    by_rank = [metrics(rows[rows[:, 0] == rank]) for rank in (0, 1, 3)]
    means = {"samples": rows[:, 3].sum(), "accuracy": (rows[:, 2] / rows[:, 3]).mean()}
    means["loss"] = (rows[:, 1] / rows[:, 3]).mean()
    results = [value["result"] for value in seen]
    check(
        all(set(result) == {"loss", "accuracy", "samples"} for result in results),
        "missing-name",
        f"evaluate returns the keys {sorted(results[0])}: loss, accuracy and samples are wanted",
    )
    check(
        any(abs(result["samples"] - results[0]["samples"]) > 0 for result in results) is False,
        "loss-is-local",
        f"evaluate returns other numbers on other ranks, {results[0]} and {results[1]}: sum over "
        f"all ranks (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    _hold_results(seen, results, metrics(rows), means, by_rank)


def _hold_results(seen, results, expected, means, by_rank):
    from dataclasses import replace

    only_results = replace(seen, values=tuple(results))
    rank_means = {
        "loss": float(np.mean([m["loss"] for m in by_rank])),
        "accuracy": float(np.mean([m["accuracy"] for m in by_rank])),
        "samples": expected["samples"],
    }
    assert_on_every_rank(
        only_results,
        expected,
        mistakes=[
            would_be(
                [wrong] * 4,
                "mean-of-means",
                "evaluate averages means: of batches or ranks that have 11, 2, 0 and 6 samples, in "
                "batches of at most 4. Sums weigh right",
                GUIDE,
            )
            for wrong in (means, rank_means, {**expected, "loss": means["loss"]})
        ],
        otherwise=f"evaluate returns {results[0]} on rank 0, with 11, 2, 0 and 6 samples on the "
        "ranks in batches of at most 4: that is not loss and accuracy over all samples",
    )


@exercise("phase1/evaluate", points=1.5)
def test_nothing_is_learned_from_it(ranks, rng):
    """It runs in evaluation mode, without gradients, and leaves those there are alone."""
    seen = ranks(probe_evaluate, 2, shares=draw(rng, [5, 3]))

    calls = [call for value in seen for call in value["calls"]]
    check(
        not any(training for training, _ in calls),
        "mode-not-restored",
        f"evaluate runs the model in training mode (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        not any(enabled for _, enabled in calls) and all(value["kept_grad"] for value in seen),
        "exception",
        f"evaluate tracks or changes gradients: nothing is learned from it (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/evaluate", points=2)
def test_the_former_mode_is_put_back(ranks, rng):
    """A model in training mode is in it afterwards, one in evaluation mode too."""
    seen = ranks(probe_evaluate, 2, shares=draw(rng, [5, 3]))

    wrong = [rank for rank in range(2) if not seen[rank]["kept_mode"]]
    was = " and ".join(f"rank {r} ({'training' if r != 1 else 'evaluation'})" for r in wrong)
    check(
        not wrong,
        "mode-not-restored",
        f"after evaluate the model is not in the mode that it came in, on {was} "
        f"(GUIDELINES, {GUIDE})",
        ranks=wrong,
        guide=GUIDE,
    )
