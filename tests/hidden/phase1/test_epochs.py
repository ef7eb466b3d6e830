"""A pass over the data: its order, its mean loss, and what it is evaluated to."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from gradsync.diagnose.rounding import cut_short
from gradsync.diagnose.waiting import nobody_waited
from gradsync.probes.evaluation import Spy
from gradsync.testing import assert_on_every_rank, by_rank, check, each, exercise, hold, would_be
from gradsync.text import counted

GUIDE = "Epochs and evaluation"
EPOCHS = (5, 0)


class CountedSampler(SequentialSampler):
    """Goes in order, and counts its passes."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


class EarSampler(SequentialSampler):
    """Goes in order, and notes the epoch that it was last told when a pass begins."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.epoch, self.passes = None, []

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        self.passes.append(self.epoch)
        return super().__iter__()


def draw(rng, counts):
    """Return, by rank, inputs (sample, 4) and targets (sample,): the losses vary a lot."""
    return [(rng.standard_normal((n, 4)) * 5, rng.integers(0, 3, n)) for n in counts]


def tensors(share):
    return TensorDataset(*(torch.from_numpy(part) for part in share))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3)


def probe_epoch(rank, trainer, data, orders, batch_size):
    """Train on the samples that this rank's order picks out of all, as a sampler's would.

    Another model was trained before, on this one's first batch: this is not the first epoch.

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
    """Tell whether a spy's weights are others than those that it is made with."""
    return not torch.equal(model.layer.weight, Spy().layer.weight)


def padded_chunks(count, ranks):
    """Return the orders of all ranks: chunks of 0, 1, 2, ..., padded with their beginning."""
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


@exercise("phase1/train_epoch", points=1.5)
def test_the_sampler_is_told_the_epoch(ranks, rng):
    """The loader's sampler hears the epoch before the pass, the first one, 0, as well."""

    def probe(rank, trainer, shares):
        data = tensors(shares[rank])
        loader = DataLoader(data, batch_size=4, sampler=EarSampler(data))
        model = Spy()
        heard = []
        for epoch in EPOCHS:
            loader.sampler.passes.clear()
            loader.sampler.epoch = None
            trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), epoch)
            heard.append([[*loader.sampler.passes], loader.sampler.epoch])
        return heard

    seen = ranks(probe, 2, shares=by_rank(draw(rng, [8, 8])))

    for number, epoch in enumerate(EPOCHS):
        hold_heard(each(seen, lambda value, number=number: value[number]), epoch)


def hold_heard(seen, epoch):
    """Hold the samplers to have heard that epoch before their one pass."""
    unheard = [rank for rank in range(2) if any(heard != epoch for heard in seen[rank][0])]
    passes, told = seen[unheard[0]] if unheard else ([epoch], epoch)
    heard = "nothing" if told is None else f"epoch {told}" + " after the pass" * (None in passes)
    check(
        not unheard,
        "epoch-not-set",
        f"train_epoch of epoch {epoch} told the loader's sampler {heard}: before the pass it has "
        "to be told the epoch, or its order is not that epoch's",
        ranks=unheard,
        guide=GUIDE,
    )
    idle = [rank for rank in range(2) if not seen[rank][0]]
    check(
        not idle,
        "samples-dropped",
        f"train_epoch of epoch {epoch} did not go through the loader",
        ranks=idle,
        guide=GUIDE,
    )


@exercise("phase1/train_epoch", points=2.5)
def test_the_epochs_loss_weighs_every_sample_alike(ranks, rng):
    """The mean is over all ranks' samples: a smaller last batch weighs less."""
    [data] = draw(rng, [26])
    orders = padded_chunks(26, 3)

    seen = ranks(probe_epoch, 3, data=data, orders=by_rank(orders), batch_size=4)

    hold(nobody_waited(seen, GUIDE))
    batches = [len(value["modes"]) for value in seen]
    check(
        batches == [3, 3, 3],
        "samples-repeated" if max(batches) > 3 else "samples-dropped",
        f"train_epoch trained on {batches} batches by rank: 9 samples on each, in batches of 4, "
        "are 3 batches",
        ranks=[rank for rank in range(3) if batches[rank] != 3],
        guide=GUIDE,
    )
    kinds = {value["kind"] for value in seen}
    check(
        kinds == {"float"},
        "wrong-signature",
        f"train_epoch returns a {' or a '.join(sorted(kinds - {'float'}))}: a float is wanted",
        ranks=[rank for rank in range(3) if seen[rank]["kind"] != "float"],
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
            cut_short("train_epoch", GUIDE),
        ],
        otherwise=f"train_epoch returns {list(seen)} by rank: that is not the mean over all "
        "samples of all ranks, as they were when each batch came",
    )


def first_batch_again(shares, steps):
    """Return the rule for a loss of that many steps on the first batch."""
    losses, _ = batch_losses([[np.concatenate([p[:4]] * steps) for p in s] for s in shares], 4)
    text = (
        f"train_epoch returns the loss of {steps} steps on the loader's first batch: each "
        "`iter(loader)` begins from the start, and the other samples are never seen"
    )
    return would_be([losses.mean()] * len(shares), "samples-dropped", text, GUIDE)


def never_updated(shares, sizes):
    """Return the rule for the loss of a model that stays as it was in all steps."""
    losses, _ = batch_losses(shares, 4, lr=0)
    text = (
        "train_epoch returns the loss of a model that is never updated: the optimizer has to step, "
        "and the model has to be the one whose parameters it has, not a copy"
    )
    mean = (sizes @ losses).mean() / sizes.sum()
    return would_be([mean] * len(shares), "does-not-learn", text, GUIDE)


def each_on_its_own(shares):
    """Return the rules for the losses of ranks that each train on their own gradients."""
    alone = []
    for share in shares:
        losses, sizes = batch_losses([share], 4)
        alone.append(sizes @ losses[:, 0] / sizes.sum())
    text = (
        "train_epoch returns the loss of ranks that train apart, each on its own gradients: they "
        "are to be averaged before every step, as `train_step` does"
    )
    code = "gradients-not-synchronised"
    return [would_be(values, code, text, GUIDE) for values in ([np.mean(alone)] * 3, alone)]


def epoch_loss_mistakes(losses, sizes, count):
    """Return the rules that know a mistake by the loss returned, from those of (batch, rank).

    The dataset has `count` samples, the ranks' shares together a few more: the padding.
    """
    ranks = losses.shape[1]
    by_rank = sizes @ losses / sizes.sum()  # (rank,)
    shared = (
        f"divides by {count} samples, the size of the dataset, but this rank goes through "
        f"{sizes.sum()} of them, and all {ranks} together, with the padding, through "
        f"{ranks * sizes.sum()}: count those that came"
    )
    last = "the last batch has 1 sample and the others 4: each weighs by its samples"

    def rule(values, code, text):
        return would_be(list(np.broadcast_to(values, ranks)), code, f"train_epoch {text}", GUIDE)

    kept = (sizes @ losses + sizes[0] * losses[0]).mean() / (sizes.sum() + sizes[0])
    return [
        rule(
            kept,
            "differs-from-single-process",
            "returns the mean over the samples of this call and of the one before it: sums begin "
            "at zero in each call, also those in a default argument",
        ),
        rule((sizes @ losses).mean() / count, "differs-from-single-process", shared),
        rule((sizes @ losses).sum() / count, "differs-from-single-process", shared),
        rule(
            losses.mean(), "mean-of-means", f"returns the mean of its batches' losses, but {last}"
        ),
        rule(losses[-1].mean(), "mean-of-means", "returns the last batch's loss, not the epoch's"),
        rule(by_rank, "loss-is-local", "returns the loss of this rank's samples alone"),
        rule(losses.mean(0), "loss-is-local", "returns the mean of this rank's batches alone"),
        rule((sizes @ losses).mean(), "sum-not-mean", "returns a sum over samples, not their mean"),
        rule(losses.mean(1).sum(), "sum-not-mean", "returns the sum of its batches' losses"),
        rule(
            by_rank.mean() / ranks,
            "divided-twice",
            f"returns a loss that is {ranks} times too small: that of a step is the mean over "
            "ranks already",
        ),
        rule(by_rank.sum(), "sum-not-mean", "returns the sum of the ranks' losses, not their mean"),
    ]


@exercise("phase1/train_epoch", points=1)
def test_it_trains_in_training_mode(ranks, rng):
    """A model that comes in evaluation mode is switched to training mode."""
    [data] = draw(rng, [16])

    seen = ranks(probe_epoch, 2, data=data, orders=by_rank(padded_chunks(16, 2)), batch_size=4)

    modes = [mode for value in seen for call in value["modes"] for mode in call]
    check(
        all(value["modes"] for value in seen),
        "samples-dropped",
        "train_epoch returned without having run the model on a single batch of the loader",
        guide=GUIDE,
    )
    hold_trained(all(value["moved"] for value in seen))
    check(
        any(modes),
        "mode-not-restored",
        "train_epoch ran the model in evaluation mode: after an evaluation it has to be switched "
        "back, or dropout and BatchNorm do not train",
        guide=GUIDE,
    )
    check(
        all(modes),
        "mode-not-restored",
        "train_epoch ran the model with a part of it in evaluation mode: the model and all layers "
        "in it have to be switched back, or dropout and BatchNorm there do not train",
        guide=GUIDE,
    )


@exercise("phase1/train_epoch", points=1)
def test_a_plain_loader_will_do(ranks, rng):
    """A loader whose sampler knows no epochs, as with one rank, is fine, and gone through once."""

    def probe(trainer, data):
        model, samples = Spy(), tensors(data)
        loader = DataLoader(samples, batch_size=4, sampler=CountedSampler(samples))
        trainer.train_epoch(model, loader, nn.CrossEntropyLoss(), sgd(model), 0)
        trained = sum(call.tracked for call in model.calls)
        return [trained, has_moved(model), loader.sampler.passes]

    [data] = draw(rng, [8])
    [[batches, moved, passes]] = ranks(probe, 1, data=data)

    check(
        batches == 2,
        "samples-repeated" if batches > 2 else "samples-dropped",
        f"train_epoch of a plain loader trained on {counted(batches, 'batch', 'batches')}, and the "
        "loader has 2",
        guide=GUIDE,
    )
    hold_trained(moved)
    check(
        passes == 1,
        "samples-repeated",
        f"train_epoch goes through the loader's sampler {passes} times. Each `iter(loader)`, also "
        "one for a look at the first batch, begins another pass: it loads samples again, and uses "
        "up a pass of a sampler that resumes. Take what you need from the batches of one loop",
        guide=GUIDE,
    )


def hold_trained(moved):
    """Hold the weights to have moved: without a step there is no training to judge."""
    check(
        moved,
        "does-not-learn",
        "after train_epoch the model has the weights from before: every batch is a training step",
        guide=GUIDE,
    )
