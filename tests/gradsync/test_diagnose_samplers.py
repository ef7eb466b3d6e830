"""What is wrong with a sampler's epochs, seeds, random states and refusals."""

import random

import pytest

from gradsync.diagnose.samplers import (
    BAD_ARGUMENTS,
    epoch_ignored,
    process_has_a_say,
    random_state_touched,
    refused_wrongly,
    seed_ignored,
)
from gradsync.probes.sampling import changed_since, passes_of_epochs, random_states, refusals

GUIDE = "Data distribution"


class Fickle:
    """A sampler of five samples, whose order depends on the epoch in one way or another."""

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


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (Fickle(lambda _: rotated(0)), "in the same order"),
        (Fickle(counted()), "the second time"),
        (Fickle(rotated, epoch=3), "a new sampler"),
    ],
)
def test_an_order_that_is_not_the_epochs_is_told(sampler, said):
    found = epoch_ignored(passes_of_epochs(sampler), GUIDE)

    assert found.code == "epoch-ignored"
    assert said in found.explanation


def test_an_order_for_each_epoch_is_right():
    assert epoch_ignored(passes_of_epochs(Fickle(rotated)), GUIDE) is None


def test_the_processes_that_differ_are_named():
    found = process_has_a_say([[[1, 0]], [[1, 0]], [[0, 1]]], GUIDE)

    assert (found.code, found.ranks) == ("shuffle-differs-across-ranks", (2,))


def test_two_seeds_with_the_same_order_are_enough():
    assert seed_ignored([[0, 1], [1, 0], [0, 1]], 3, GUIDE).code == "seed-ignored"
    assert seed_ignored([[0, 1], [1, 0]], 3, GUIDE) is None


def test_the_library_whose_random_state_was_touched_is_named():
    before = random_states()
    random.random()

    found = random_state_touched(changed_since(before), GUIDE)

    assert "state of random is" in found.explanation


def test_a_refusal_has_to_name_the_argument():
    def sampler(dataset, num_replicas, rank):
        if not len(dataset) or num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError("num_replicas or rank is impossible")
        return dataset

    found = refused_wrongly("Sampler", refusals(sampler, BAD_ARGUMENTS), GUIDE)

    assert found.code == "bad-arguments-accepted"
    assert "says 'dataset' is wanted" in found.explanation


def test_who_refuses_good_arguments_is_not_asked_about_bad_ones():
    def sampler(dataset, num_replicas, rank):
        raise ValueError("dataset, num_replicas, rank")

    with pytest.raises(ValueError, match="num_replicas"):
        refusals(sampler, BAD_ARGUMENTS)
