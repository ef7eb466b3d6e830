"""Mistakes of a sampler: its epochs, seeds, random states and refusals."""

import builtins
import random
import time

import numpy as np
import pytest
import torch

from support.probes.sampling import (
    be_another_process,
    indices_of,
    pass_watched,
    passes_of_epochs,
    random_states,
    refusals,
)
from support.rules.samplers import (
    BAD_ARGUMENTS,
    epoch_ignored,
    few_samples,
    order_depends_on_world_size,
    other_seed_by_default,
    process_has_a_say,
    random_state_touched,
    refused_wrongly,
    seed_ignored,
)

GUIDE = "Data distribution"


class Fickle:
    """A sampler of five samples with any order that depends on the epoch."""

    def __init__(self, order_of, epoch=0):
        self.order_of, self.epoch = order_of, epoch

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(self.order_of(self.epoch))


def rotated(epoch):
    return [(index + epoch) % 5 for index in range(5)]


def counted():
    calls = iter(range(9))
    return lambda _: rotated(next(calls))


def counted_once_set():
    calls = iter([0, 0, 1, 2, 0, 1, 1])
    return lambda _: rotated(next(calls))


class Shared(Fickle):
    """Samplers that share one epoch."""

    def __init__(self):
        super().__init__(rotated)
        type(self).epoch = 0
        del self.epoch

    def set_epoch(self, epoch):
        type(self).epoch = epoch


class Exhausted(Fickle):
    """A sampler that allows only one pass in each epoch."""

    def set_epoch(self, epoch):
        super().set_epoch(epoch)
        self.rest = iter(rotated(epoch))

    def __iter__(self):
        return self.rest if hasattr(self, "rest") else super().__iter__()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fickle(lambda _: rotated(0)), "in the same order"),
        (lambda: Fickle(counted()), "an earlier `set_epoch(0)`"),
        (lambda: Fickle(rotated, epoch=3), "A new sampler"),
        (lambda: Fickle(counted_once_set()), "A second pass"),
        (Shared, "of another sampler"),
    ],
)
def test_an_order_that_does_not_fit_the_epoch_is_reported(make, said):
    found = epoch_ignored(passes_of_epochs(make), GUIDE)

    assert found.code == "epoch-ignored"
    assert said in found.explanation


def test_a_second_pass_that_yields_nothing_is_reported():
    found = epoch_ignored(passes_of_epochs(lambda: Exhausted(rotated)), GUIDE)

    assert found.code == "samples-missing"
    assert "yields 0 indices, but the first yields 5" in found.explanation


def test_one_order_for_each_epoch_is_right():
    assert epoch_ignored(passes_of_epochs(lambda: Fickle(rotated)), GUIDE) is None


def test_a_pass_may_yield_any_type_that_can_index_a_list():
    assert indices_of(np.array([2, 0])) == indices_of(torch.tensor([2, 0])) == [2, 0]
    with pytest.raises(TypeError, match="integer"):
        indices_of([2.0])


def test_the_processes_that_differ_are_named():
    found = process_has_a_say([[[1, 0]], [[1, 0]], [[0, 1]]], GUIDE)

    assert (found.code, found.ranks) == ("shuffle-differs-across-ranks", (2,))


def test_two_seeds_with_the_same_order_are_reported():
    assert seed_ignored([[0, 1], [1, 0], [0, 1]], 3, GUIDE).code == "seed-ignored"
    assert seed_ignored([[0, 1], [1, 0]], 3, GUIDE) is None


def test_the_default_seed_is_0():
    assert other_seed_by_default([0, 1], [1, 0], GUIDE).code == "seed-ignored"
    assert other_seed_by_default([0, 1], [0, 1], GUIDE) is None


def drawing():
    random.random()
    yield from range(3)


def drawing_and_restoring_at_the_end():
    before = random.getstate()
    yield from drawing()
    random.setstate(before)


@pytest.mark.parametrize(
    ("indices", "said"),
    [
        (drawing, "A pass changes the global random state of random"),
        (drawing_and_restoring_at_the_end, "state of random is changed during a pass"),
    ],
)
def test_the_library_whose_random_state_changes_is_named(indices, said):
    order, during, touched = pass_watched(indices(), random_states())

    found = random_state_touched(during, touched, GUIDE)

    assert order == [0, 1, 2]
    assert said in found.explanation


def test_an_unchanged_random_state_is_right():
    _, during, touched = pass_watched(range(3), random_states())

    assert random_state_touched(during, touched, GUIDE) is None


def test_a_refusal_must_name_the_argument():
    def sampler(dataset, num_replicas, rank, *, shuffle):
        if not len(dataset) or num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError("num_replicas or rank is impossible")
        return dataset

    found = refused_wrongly("Sampler", refusals(sampler, BAD_ARGUMENTS), GUIDE)

    assert found.code == "bad-arguments-accepted"
    assert "shuffle=True raises ValueError" in found.explanation
    assert "message contains 'dataset'" in found.explanation


def test_an_empty_dataset_must_be_refused_without_shuffling_too():
    def sampler(dataset, num_replicas, rank, *, shuffle):
        if (shuffle and not len(dataset)) or not 0 <= rank < num_replicas:
            raise ValueError("dataset, num_replicas or rank is impossible")
        return dataset

    found = refused_wrongly("Sampler", refusals(sampler, BAD_ARGUMENTS), GUIDE)

    assert "shuffle=False raises no error" in found.explanation


def test_an_error_on_good_arguments_is_raised():
    def sampler(dataset, num_replicas, rank, *, shuffle):
        raise ValueError("dataset, num_replicas, rank")

    with pytest.raises(ValueError, match="num_replicas"):
        refusals(sampler, BAD_ARGUMENTS)


def test_an_order_that_depends_on_the_number_of_ranks_is_reported():
    assert order_depends_on_world_size({3: [1, 0, 2], 2: [1, 0, 2]}, GUIDE) is None

    found = order_depends_on_world_size({3: [1, 0, 2], 2: [2, 0, 1]}, GUIDE)

    assert found.code == "shuffle-differs-across-ranks"
    assert "the order is 1, 0, 2 on 3 ranks and 2, 0, 1 on 2 ranks" in found.explanation


@pytest.mark.parametrize("order", [[0, 0, 0, 0], [3, 3, 3, 1], [1, 0] * 3])
def test_repeated_samples_are_reported(order):
    assert few_samples(order, GUIDE).code == "samples-missing"


@pytest.mark.parametrize("order", [[0], [2, 0, 1, 2], [3, 1]])
def test_padding_is_not_reported_as_repeated_samples(order):
    assert few_samples(order, GUIDE) is None


def test_a_different_process_has_a_different_clock_and_other_addresses(monkeypatch):
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    monkeypatch.setattr(builtins, "hash", hash)
    before = time.time()

    kept = be_another_process(2)

    assert 7200 <= time.time() - before < 7300
    assert 7200 <= time.time_ns() / 1e9 - before < 7300
    assert len(kept) == 60
