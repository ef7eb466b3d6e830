"""Mistakes with the two loaders, recognised by the samples that they yield."""

import pytest

from gradsync.records import Diagnosis, Failure, Observation
from support.rules.loaders import (
    index_past_the_end,
    other_dataset,
    sampler_refused,
    share_of_other_dataset,
    shares_depend_on_environment,
)

TRAIN, VAL = [[0, 1], [2, 0]], [[100], [101]]


@pytest.mark.parametrize(
    ("train", "val", "ranks", "what"),
    [
        (TRAIN, [[100], [1]], (1,), "The val loader of rank 1 yields samples of `train_dataset`"),
        (VAL, TRAIN, (0, 1), "The train loader of ranks 0 and 1 yields samples of `val_dataset`"),
    ],
)
def test_samples_of_the_other_dataset_are_named(train, val, ranks, what):
    found = other_dataset(train, val, first_val=100)

    assert (found.code, found.ranks) == ("samples-missing", ranks)
    assert what in found.explanation


def test_each_loader_with_samples_of_its_own_dataset_is_right():
    assert other_dataset(TRAIN, VAL, first_val=100) is None


def test_a_share_as_large_as_that_of_the_other_dataset_is_reported():
    found = share_of_other_dataset("the train loader", 9, own=17, other=9, rank=2)

    assert (found.code, found.ranks) == ("samples-missing", (2,))
    assert "the train loader yields 9 samples" in found.explanation


@pytest.mark.parametrize("given", [17, 16, 50])
def test_any_other_count_is_not_explained_by_the_other_dataset(given):
    assert share_of_other_dataset("the train loader", given, own=17, other=9, rank=0) is None


def failed(exception, where=None):
    diagnosis = Diagnosis("exception", (1,), "what came back can't be used", where)
    failure = Failure("error", diagnosis, exception, "index 31 is too large")
    return Observation(2, (None, None), (), ("", ""), 1.0, failure)


def test_an_index_past_the_end_is_explained():
    found = index_past_the_end(failed("IndexError"), None)

    assert (found.code, found.ranks) == ("exception", (1,))
    assert "a sample past the end (index 31 is too large)" in found.explanation


def test_index_errors_in_the_users_code_and_other_errors_are_kept():
    assert index_past_the_end(failed("IndexError", "template_data_loader.py:130"), None) is None
    assert index_past_the_end(failed("TypeError"), None) is None


def test_shares_that_depend_on_the_environment_are_reported():
    found = shares_depend_on_environment((TRAIN, VAL), ([[5], [5]], VAL), "RANK=2")
    assert (found.code, found.ranks) == ("same-shard-on-every-rank", (0, 1))
    assert "With RANK=2 in os.environ, rank 0's train loader yields 5" in found.explanation

    assert (
        shares_depend_on_environment((TRAIN, VAL), (TRAIN, [[1], [2]]), "").code
        == "samples-missing"
    )
    assert shares_depend_on_environment((TRAIN, VAL), (TRAIN, VAL), "RANK=2") is None


def test_a_sampler_that_refuses_its_arguments_is_reported_with_their_order():
    text = "num_replicas must be at least 1, got 0"
    known = Diagnosis("exception", (0,), text, "template_data_loader.py:59")
    failure = Failure("error", known, "ValueError", text)

    found = sampler_refused(Observation(1, (None,), (), (), 0.0, failure), None)

    assert (found.code, found.where) == ("wrong-signature", known.where)
    assert f"a wrong `num_replicas` to a sampler, which refuses it: {text}." in found.explanation
