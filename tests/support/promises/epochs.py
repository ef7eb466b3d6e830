"""What a training epoch promises: its order, its mean loss and its mode.

A rank's data are inputs (sample, 4), whose losses vary a lot, and targets (sample,), of 3 classes.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from gradsync.testing import assert_on_every_rank, by_rank, check, each, raise_mistake
from gradsync.text import counted, no_float
from support.probes.evaluation import Spy
from support.rules.epochs import other_batches
from support.rules.rounding import rounded_loss
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import ends_with

GUIDE = "Epochs and evaluation"


class CountedSampler(SequentialSampler):
    """Yields the samples in order, and counts its passes."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


class EpochSampler(SequentialSampler):
    """Yields the samples in order, and records the epoch that is set when a pass begins."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.epoch, self.passes = None, []

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.passes.append(self.epoch)
        return super().__iter__()


def tensors(share):
    return TensorDataset(*(torch.from_numpy(part) for part in share))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3)


def probe_epoch(rank, trainer, data, orders, batch_size):
    """Train on the samples in this rank's order, as with a sampler.

    Before that, another model is trained on the first batch, so this is not the first epoch.

    Returns:
        The `loss` and its `kind`, the `modes` of the calls, and whether any weight has `moved`.
    """
    before = Spy()
    first = DataLoader(tensors(data), batch_size, sampler=orders[rank][:batch_size])
    trainer.train_epoch(before, first, nn.CrossEntropyLoss(), sgd(before), 0)
    model = Spy().eval()
    loader = DataLoader(tensors(data), batch_size=batch_size, sampler=orders[rank])
    loss = trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), 1)
    return {
        "loss": loss if isinstance(loss, float) else None,
        "kind": "float" if isinstance(loss, float) else type(loss).__name__,
        "modes": [call.training for call in model.calls if call.tracked],
        "moved": has_moved(model),
    }


def has_moved(model):
    """Return whether the weights of a spy differ from its initial ones."""
    return not torch.equal(model.layer.weight, Spy().layer.weight)


def padded_chunks(count, ranks):
    """Return each rank's chunk of the order 0, 1, 2, ..., padded with its beginning."""
    share = -(-count // ranks)
    return [[i % count for i in range(r * share, (r + 1) * share)] for r in range(ranks)]


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
                param.sub_(lr * param.grad)
        losses.append([loss.item() for loss in row])
        sizes.append(len(parts[0][1]))
    return np.array(losses), np.array(sizes)


def epoch_set(ranks, shares, epochs):
    """Check that train_epoch sets the sampler's epoch before the pass, for each of the epochs."""

    def probe(rank, trainer, shares, epochs):
        data = tensors(shares[rank])
        loader = DataLoader(data, batch_size=4, sampler=EpochSampler(data))
        model = Spy()
        recorded = []
        for epoch in epochs:
            loader.sampler.passes.clear()
            loader.sampler.epoch = None
            trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), epoch)
            recorded.append([[*loader.sampler.passes], loader.sampler.epoch])
        return recorded

    seen = ranks(probe, 2, shares=by_rank(shares), epochs=epochs)

    for number, epoch in enumerate(epochs):
        check_epoch_set(each(seen, lambda value, number=number: value[number]), epoch)


def check_epoch_set(seen, epoch):
    """Check that the samplers' epoch was set before their only pass."""
    wrong = [rank for rank in range(2) if any(own != epoch for own in seen[rank][0])]
    passes, epoch_set = seen[wrong[0]] if wrong else ([epoch], epoch)
    state = "not set" if epoch_set is None else f"set to {epoch_set}"
    state += " after the pass" * (epoch_set is not None and None in passes)
    check(
        not wrong,
        "epoch-not-set",
        f"In train_epoch for epoch {epoch}, the epoch of the loader's sampler is {state}. Set it "
        f"to {epoch} before the pass, or the samples come in the order of another epoch.",
        ranks=wrong,
        guide=GUIDE,
    )
    idle = [rank for rank in range(2) if not seen[rank][0]]
    check(
        not idle,
        "samples-dropped",
        f"train_epoch for epoch {epoch} did not iterate over the loader.",
        ranks=idle,
        guide=GUIDE,
    )


def mean_loss_returned(ranks, data, world_size):
    """Check the mean over all ranks' samples, shared out and padded, in batches of 4, 4 and 1."""
    orders = padded_chunks(len(data[1]), world_size)

    seen = ranks(probe_epoch, world_size, data=data, orders=by_rank(orders), batch_size=4)

    raise_mistake(nobody_waited(seen, GUIDE))
    batches = [len(value["modes"]) for value in seen]
    raise_mistake(other_batches(batches, 3, GUIDE))
    kinds = {value["kind"] for value in seen}
    check(
        kinds == {"float"},
        "wrong-signature",
        no_float("train_epoch", kinds - {"float"}),
        ranks=[rank for rank in range(world_size) if seen[rank]["kind"] != "float"],
        guide=GUIDE,
    )
    shares = [[part[order] for part in data] for order in orders]
    losses, sizes = batch_losses(shares, 4)
    seen = each(seen, lambda value: value["loss"])
    assert_on_every_rank(
        seen,
        (sizes @ losses).mean() / sizes.sum(),
        mistakes=[
            *epoch_loss_mistakes(losses, sizes, len(data[1])),
            first_batch_again(shares, len(sizes)),
            never_updated(shares, sizes),
            *each_on_its_own(shares),
            rounded_loss("train_epoch", GUIDE),
        ],
        otherwise=f"the ranks return {list(seen)} from train_epoch. Each should return the mean "
        "over all samples of all ranks, where each loss is taken before the step of its batch",
    )


def first_batch_again(shares, steps):
    """Return the rule for the loss of this number of steps, all on the first batch."""
    losses, _ = batch_losses([[np.concatenate([p[:4]] * steps) for p in s] for s in shares], 4)
    text = (
        f"train_epoch returns the loss of {steps} steps on the loader's first batch. Each "
        "`iter(loader)` starts at the first batch, so the other samples are never used: loop over "
        "the loader once."
    )
    return ends_with([losses.mean()] * len(shares), "samples-dropped", text, GUIDE)


def never_updated(shares, sizes):
    """Return the rule for the loss of a model that no step changes."""
    losses, _ = batch_losses(shares, 4, lr=0)
    text = (
        "train_epoch returns the loss of a model that is never updated. Call the optimizer's step, "
        "and use the model whose parameters the optimizer has, not a copy."
    )
    mean = (sizes @ losses).mean() / sizes.sum()
    return ends_with([mean] * len(shares), "does-not-learn", text, GUIDE)


def each_on_its_own(shares):
    """Return the rules for the losses of ranks that each train on their own gradients."""
    alone = []
    for share in shares:
        losses, sizes = batch_losses([share], 4)
        alone.append(sizes @ losses[:, 0] / sizes.sum())
    text = (
        "train_epoch returns the loss of ranks that each train on their own gradients. Average the "
        "gradients before every step, as `train_step` does."
    )
    code = "gradients-not-synchronised"
    return [
        ends_with(values, code, text, GUIDE) for values in ([np.mean(alone)] * len(alone), alone)
    ]


def epoch_loss_mistakes(losses, sizes, count):
    """Return the rules that recognise a mistake by the returned loss, given losses (batch, rank).

    The dataset has `count` samples; the ranks' shares together have a few more, the padding.
    """
    ranks = losses.shape[1]
    by_rank = sizes @ losses / sizes.sum()  # (rank,)
    shared = (
        f"divides by {count}, the size of the dataset, but this rank has {sizes.sum()} samples, "
        f"and all {ranks} ranks have {ranks * sizes.sum()} with the padding. Count the samples "
        "that the loader yields."
    )
    last = "the last batch has 1 sample and the others 4. Weight each batch by its samples."

    def rule(values, code, text):
        return ends_with(list(np.broadcast_to(values, ranks)), code, f"train_epoch {text}", GUIDE)

    kept = (sizes @ losses + sizes[0] * losses[0]).mean() / (sizes.sum() + sizes[0])
    return [
        rule(
            kept,
            "differs-from-single-process",
            "returns the mean over the samples of this call and of the previous one. Start every "
            "sum at zero in each call, even a sum in a default argument.",
        ),
        rule((sizes @ losses).mean() / count, "differs-from-single-process", shared),
        rule((sizes @ losses).sum() / count, "differs-from-single-process", shared),
        rule(
            losses.mean(), "mean-of-means", f"returns the mean of its batches' losses, but {last}"
        ),
        rule(losses[-1].mean(), "mean-of-means", "returns only the loss of the last batch."),
        rule(by_rank, "loss-is-local", "returns the loss of only this rank's samples."),
        rule(losses.mean(0), "loss-is-local", "returns the mean of only this rank's batches."),
        rule(
            (sizes @ losses).mean(),
            "sum-not-mean",
            "returns a sum over samples, not the mean. Divide it by the number of samples of all "
            "ranks.",
        ),
        rule(losses.mean(1).sum(), "sum-not-mean", "returns the sum of its batches' losses."),
        rule(
            by_rank.mean() / ranks,
            "divided-twice",
            f"returns a loss that is {ranks} times too small. The loss of a step is already the "
            "mean over the ranks: do not divide it again.",
        ),
        rule(
            (sizes @ losses).mean() / len(sizes),
            "mean-of-means",
            f"divides the sum over {sizes.sum()} samples by {len(sizes)}, the number of batches. "
            "Divide by the number of samples.",
        ),
        rule(
            by_rank.sum(),
            "sum-not-mean",
            "returns the sum of the ranks' losses, not the mean. The loss of train_step is already "
            "the mean over the ranks: do not add it up over the ranks again.",
        ),
    ]


def trained_in_training_mode(ranks, data):
    """Check that a model in evaluation mode is switched to training mode before training."""
    orders = by_rank(padded_chunks(len(data[1]), 2))

    seen = ranks(probe_epoch, 2, data=data, orders=orders, batch_size=4)

    modes = [mode for value in seen for call in value["modes"] for mode in call]
    check(
        all(value["modes"] for value in seen),
        "samples-dropped",
        "train_epoch returned without running the model on a single batch of the loader.",
        guide=GUIDE,
    )
    check_trained(all(value["moved"] for value in seen))
    check(
        any(modes),
        "mode-not-restored",
        "train_epoch ran the model in evaluation mode, where dropout is off and BatchNorm does not "
        "update its statistics. Switch the model to training mode first.",
        guide=GUIDE,
    )
    check(
        all(modes),
        "mode-not-restored",
        "train_epoch ran the model with some layers in evaluation mode, where dropout is off and "
        "BatchNorm does not update its statistics. Switch the model and all its layers to training "
        "mode first.",
        guide=GUIDE,
    )


def one_pass_without_set_epoch(ranks, data):
    """Check that a sampler without `set_epoch` works, and that 8 samples are used only once."""

    def probe(trainer, data):
        model, samples = Spy(), tensors(data)
        loader = DataLoader(samples, batch_size=4, sampler=CountedSampler(samples))
        trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), 0)
        trained = sum(call.tracked for call in model.calls)
        return [trained, has_moved(model), loader.sampler.passes]

    [[batches, moved, passes]] = ranks(probe, 1, data=data)

    check(
        batches == 2,
        "samples-repeated" if batches > 2 else "samples-dropped",
        f"train_epoch trained on {counted(batches, 'batch', 'batches')} of a loader that has 2.",
        guide=GUIDE,
    )
    check_trained(moved)
    check(
        passes == 1,
        "samples-repeated",
        f"train_epoch goes through the loader's sampler {passes} times. Each `iter(loader)` starts "
        "another pass, even to look at the first batch, and loads samples again. Use a single "
        "`for` loop over the loader.",
        guide=GUIDE,
    )


def check_trained(moved):
    """Check that the weights have changed: without a step, nothing else can be checked."""
    check(
        moved,
        "does-not-learn",
        "After train_epoch, the weights are the same as before. Take a training step for every "
        "batch.",
        guide=GUIDE,
    )
