"""Mistakes in the samples that ranks train on, by rank and epoch."""

import sys
from types import SimpleNamespace

import pytest

from support.probes.training import orders_of_sampler
from support.rules.epochs import order_of_another_epoch, other_batches, other_samples

HEADINGS = {"shares": "Shares", "epochs": "Epochs", "guide": "Training"}


def trained(*by_rank, strange=0):
    """Return a run of ranks that trained on these samples, and on `strange` validation samples."""
    return [{"trained": own, "strange": strange, "orders": []} for own in by_rank]


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "other", "code"),
    [
        ([0, 1, 0, 1], [0, 1, 0, 1], [2, 3], "same-shard-on-every-rank"),
        ([0, 1], [2, 0], [2, 3], "samples-missing"),
        ([0, 1, 1, 0], [1, 2, 2, 1], [2, 3], "shuffle-differs-across-ranks"),
        ([0, 1, 2, 3, 3, 2, 1, 0], [1, 2, 3, 0, 0, 3, 2, 1], [2, 3], "sampler-not-used"),
        ([0, 1, 1, 2, 2, 3], [2, 3, 3, 0, 0, 1], [2, 3], "differs-from-single-process"),
        ([0, 0, 0, 0], [2, 3, 3, 2], [2, 3], "samples-repeated"),
        ([0, 1], [2, 3], [2, 3], "differs-from-single-process"),
        ([0, 1, 0, 1], [2, 3, 2, 3], [2, 3], "epoch-not-set"),
        ([0, 1, 1, 2], [2, 3, 3, 0], [0, 1], "seed-ignored"),
    ],
)
def test_each_mistake_in_the_samples_has_its_code(rank_0, rank_1, other, code):
    seen = trained(rank_0, rank_1)
    reseeded = trained(other, sorted({0, 1, 2, 3} - set(other)))

    assert other_samples(seen, reseeded, seen, samples=4, **HEADINGS).code == code


def test_training_on_validation_samples_is_recognised():
    seen = trained([0], [0], strange=2)

    found = other_samples(seen, seen, seen, samples=4, **HEADINGS)

    assert found.code == "samples-missing"
    assert "samples of `val_dataset`" in found.explanation


def test_the_epoch_whose_order_is_repeated_is_named():
    seen = [{**run, "orders": [[1, 0], [0, 1]]} for run in trained([0, 1, 0, 1], [2, 3, 2, 3])]

    found = other_samples(seen, trained([2, 3], [0, 1]), seen, samples=4, **HEADINGS)

    assert "that of the sampler's epoch 1" in found.explanation


def test_an_epoch_is_padded_and_the_default_seed_is_0():
    seen = trained([0, 1, 2, 0], [2, 0, 1, 2])
    reseeded = trained([2, 1], [0, 2])

    default = other_samples(seen, reseeded, seen, samples=3, **HEADINGS)
    another = other_samples(seen, reseeded, reseeded, samples=3, **HEADINGS)

    assert default is None
    assert another.code == "wrong-signature"


ORDERS = [[2, 0, 1], [1, 2, 0], [0, 2, 1], [1, 0, 2]]  # of a sampler, by epoch


def trained_in(*epochs):
    """Return a rank's training run with passes in the orders of these epochs."""
    return {"trained": [k for epoch in epochs for k in ORDERS[epoch]], "orders": ORDERS}


def test_the_orders_of_epochs_0_1_and_so_on_are_right():
    assert order_of_another_epoch([trained_in(0, 1, 2), trained_in(0)], "Epochs") is None


@pytest.mark.parametrize(
    ("epochs", "text"),
    [
        ((1, 2), "In epoch 0 of the history, rank 1 goes over its samples in the order of the "),
        ((0, 2), "In epoch 1 of the history"),
        ((1, 0), "of the sampler's epoch 1"),
    ],
)
def test_the_order_of_another_epoch_is_reported(epochs, text):
    found = order_of_another_epoch([trained_in(0, 1), trained_in(*epochs)], "Epochs")

    assert (found.code, found.ranks) == ("epoch-not-set", (1,))
    assert text in found.explanation


def test_epochs_that_the_history_counts_from_1_too_are_one_mistake():
    history = [{"epoch": 1}, {"epoch": 2}]

    found = order_of_another_epoch([{**trained_in(1, 2), "history": history}], "Epochs")
    apart = order_of_another_epoch([{**trained_in(0, 2), "history": history}], "Epochs")

    assert (found.code, apart.code) == ("wrong-signature", "epoch-not-set")
    assert "counts its epochs from 1" in found.explanation


def test_an_unknown_epoch_is_reported_if_another_pass_uses_the_sampler():
    seen = {"trained": [*ORDERS[0], 2, 1, 0], "orders": ORDERS}

    assert "in the order of another epoch" in order_of_another_epoch([seen], "Epochs").explanation


@pytest.mark.parametrize("orders", [[], [[]], ORDERS])
def test_training_that_shuffles_without_the_sampler_is_not_checked(orders):
    assert order_of_another_epoch([{"trained": [2, 1, 0], "orders": orders}], "Epochs") is None


class Sampler:
    def __init__(self, dataset, num_replicas, rank, *, seed):
        self.share = range(rank + seed, len(dataset), num_replicas)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([index + 10 * self.epoch for index in self.share])


def test_the_orders_of_the_submissions_sampler_are_computed(monkeypatch):
    monkeypatch.setitem(sys.modules, "template_data_loader", SimpleNamespace(Mine=Sampler))

    assert orders_of_sampler("Mine", 1, 2, 4, seed=0)[:2] == [[1, 3], [11, 13]]
    assert orders_of_sampler("Another", 1, 2, 4, seed=0) == []


@pytest.mark.parametrize(
    ("batches", "code", "asked"),
    [
        ([2, 2], None, False),
        ([1, 1], "samples-dropped", True),
        ([1, 2], "samples-dropped", False),
        ([4, 4], "samples-repeated", False),
    ],
)
def test_batches_that_are_left_out_or_repeated_are_reported(batches, code, asked):
    found = other_batches(batches, 2, "Epochs", "trainer.py:9")

    assert (found and found.code) == code
    assert ("Does a `return` or `break` end" in (found.explanation if found else "")) == asked
