"""What is wrong with the samples that a training went over, by rank and epoch."""

import sys
from types import SimpleNamespace

import pytest
from torch.utils.data import Sampler

from gradsync.diagnose.epochs import counted_otherwise, other_samples
from gradsync.probes.epochs import SAMPLERS, epochs_set

HEADINGS = {"shares": "Shares", "epochs": "Epochs", "guide": "Training"}


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
def test_orders_of_samples_are_told_apart(rank_0, rank_1, other, code):
    seen = [{"trained": rank_0}, {"trained": rank_1}]
    reseeded = [{"trained": other}, {"trained": sorted({0, 1, 2, 3} - set(other))}]

    assert other_samples(seen, reseeded, seen, samples=4, **HEADINGS).code == code


def test_an_epoch_is_padded_and_has_the_order_of_seed_0_where_none_is_given():
    seen = [{"trained": [0, 1, 2, 0]}, {"trained": [2, 0, 1, 2]}]
    reseeded = [{"trained": [2, 1]}, {"trained": [0, 2]}]

    default = other_samples(seen, reseeded, seen, samples=3, **HEADINGS)
    another = other_samples(seen, reseeded, reseeded, samples=3, **HEADINGS)

    assert default is None
    assert another.code == "wrong-signature"


class Shuffler(Sampler):
    def set_epoch(self, epoch):
        self.epoch = epoch


def set_in_turn(monkeypatch, *epochs):
    """Return what is noted where a sampler's epoch is set to these, and another's once."""
    monkeypatch.setitem(sys.modules, SAMPLERS, SimpleNamespace(Shuffler=Shuffler))
    with epochs_set() as noted:
        one, other = Shuffler(), Shuffler()
        other.set_epoch(0)
        for epoch in epochs:
            one.set_epoch(epoch)
    assert one.epoch == epochs[-1]
    return [{"epochs": noted}]


@pytest.mark.parametrize("epochs", [(0, 1), (0, 0, 1, 1)])
def test_epochs_that_count_from_0_are_right(monkeypatch, epochs):
    assert counted_otherwise(set_in_turn(monkeypatch, *epochs), 2, "Epochs") is None


@pytest.mark.parametrize("epochs", [(1, 2), (0, 2), (1, 0)])
def test_epochs_that_count_otherwise_are_told(monkeypatch, epochs):
    found = counted_otherwise(set_in_turn(monkeypatch, *epochs), 2, "Epochs")

    assert (found.code, found.ranks) == ("epoch-not-set", (0,))


def test_who_sets_no_epoch_is_not_judged_by_them():
    assert counted_otherwise([{"epochs": []}], 2, "Epochs") is None
