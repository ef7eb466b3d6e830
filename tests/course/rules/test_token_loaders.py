"""Batches of tokens on several ranks: right ones pass, each known mistake gets its code."""

import pytest

from support.rules.token_loaders import LENGTH, diagnose_batches, expected_batches

ORDER = [4, 7, 1, 9, 0, 3, 8, 2, 6, 5]


def batches(numbers):
    """Return a rank's batches for numbers of sequences, as `support.probes.token_loaders` does."""
    rows = [[[10 * n + k for k in range(LENGTH + 1)] for n in batch] for batch in numbers]
    return [[[row[:-1] for row in batch], [row[1:] for row in batch]] for batch in rows]


def code_of(numbers, batch_size=2, start=0):
    every = [batches(own) for own in numbers]
    found = diagnose_batches(every, ORDER, batch_size, "case", start=start)
    return found and found.code


@pytest.mark.parametrize(("batch_size", "ranks", "start"), [(2, 2, 0), (1, 3, 4), (5, 1, 0)])
def test_right_batches_pass(batch_size, ranks, start):
    right = expected_batches(ORDER, batch_size, ranks, start)

    assert code_of(right, batch_size, start) is None


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([[[4, 1], [0, 8]]] * 2, "same-shard-on-every-rank"),
        ([[[4, 7], [0, 3]], [[1, 9], [8, 2]]], "not-strided"),
        ([[[4, 1]], [[7, 9]]], "samples-missing"),
        ([[[4, 1], [0, 8], [6, 5]], [[7, 9], [3, 2], [6, 5]]], "unequal-shards"),
        ([[[4, 1], [4, 1]], [[7, 9], [3, 2]]], "samples-repeated"),
        ([[[4, 1], [0, 8]], [[1, 9], [3, 6]]], "shuffle-differs-across-ranks"),
        ([[[4, 1], [0]], [[7, 9], [3]]], "unequal-shards"),
    ],
)
def test_wrong_batches_get_their_code(numbers, code):
    assert code_of(numbers) == code


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([[[4, 1], [0, 8]], [[7, 9], [3, 2]]], "resume-lost"),
        ([[[1, 0], [8, 6]], [[9, 3], [2, 5]]], "samples-repeated"),
        ([[[8, 6]], [[2, 5]]], "samples-missing"),
    ],
)
def test_wrong_beginnings_get_their_code(numbers, code):
    assert code_of(numbers, start=4) == code


def test_targets_that_are_the_inputs_are_recognised():
    own = batches([[4, 1], [0, 8]])
    for batch in own:
        batch[1] = batch[0]

    assert diagnose_batches([own, own], ORDER, 2, "case").code == "tokens-misplaced"
