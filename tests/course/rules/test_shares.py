"""Mistakes in the ranks' shares of a dataset."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from support.rules.shares import diagnose_shares, repeated

SIZES = st.integers(1, 2000), st.integers(1, 64)
RANDOM = st.randoms(use_true_random=False)


def padded_chunks(order, world_size):
    """Return the correct shares: pad with the order's beginning; rank r gets the r-th chunk."""
    size = math.ceil(len(order) / world_size)
    ring = list(order) * world_size * 2
    return [ring[rank * size : (rank + 1) * size] for rank in range(world_size)]


def is_right(shares, num_samples, shuffle):
    """Check by brute force whether an allowed order gives exactly these shares."""
    order = [index for share in shares for index in share][:num_samples]
    allowed = sorted(order) == list(range(num_samples))
    return (
        allowed
        and (shuffle or order == list(range(num_samples)))
        and [list(share) for share in shares] == padded_chunks(order, len(shares))
    )


def code_of(shares, num_samples, shuffle=False):
    diagnosis = diagnose_shares(shares, num_samples, shuffle)
    return diagnosis.code if diagnosis else None


@given(*SIZES, RANDOM)
def test_chunks_of_any_permutation_are_right_when_shuffling(num_samples, world_size, random):
    order = random.sample(range(num_samples), num_samples)

    assert diagnose_shares(padded_chunks(order, world_size), num_samples, shuffle=True) is None


@given(*SIZES)
def test_chunks_of_the_plain_order_are_right_without_shuffling(num_samples, world_size):
    shares = padded_chunks(range(num_samples), world_size)

    assert diagnose_shares(shares, num_samples, shuffle=False) is None


@given(st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_exactly_the_shares_of_the_contract_are_accepted(m, n, shuffle, data):
    share = st.lists(st.integers(-1, m), max_size=math.ceil(m / n) + 1)
    shares = data.draw(st.lists(share, min_size=n, max_size=n))

    assert (diagnose_shares(shares, m, shuffle) is None) == is_right(shares, m, shuffle)


@given(st.integers(1, 60), st.integers(1, 8), st.booleans(), RANDOM)
def test_one_wrong_index_is_always_noticed(num_samples, world_size, shuffle, random):
    shares = padded_chunks(random.sample(range(num_samples), num_samples), world_size)
    if not shuffle:
        shares = padded_chunks(range(num_samples), world_size)
    rank = random.randrange(world_size)
    place = random.randrange(len(shares[rank]))
    shares[rank][place] = random.choice(
        [i for i in range(-1, num_samples + 1) if i != shares[rank][place]]
    )

    assert (diagnose_shares(shares, num_samples, shuffle) is None) == (
        is_right(shares, num_samples, shuffle)
    )


@given(st.integers(1, 300), st.integers(1, 12), st.booleans(), st.integers(0, 3))
def test_torchs_strided_shares_are_right_only_where_they_are_chunks_too(m, n, shuffle, epoch):
    samplers = [DistributedSampler(range(m), n, rank, shuffle=shuffle) for rank in range(n)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    shares = [list(sampler) for sampler in samplers]

    assert (diagnose_shares(shares, m, shuffle) is None) == is_right(shares, m, shuffle)


@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_strided_shares_are_not_contiguous(shuffle):
    shares = [list(DistributedSampler(range(10), 4, rank, shuffle=shuffle)) for rank in range(4)]

    assert code_of(shares, 10, shuffle) == "not-contiguous"


@given(*SIZES)
def test_shares_are_as_large_as_torchs(num_samples, world_size):
    lengths = [len(share) for share in padded_chunks(range(num_samples), world_size)]

    assert lengths == [len(DistributedSampler(range(num_samples), world_size, 0))] * world_size


@pytest.mark.parametrize(
    ("shares", "num_samples", "code"),
    [
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]], 10, "unequal-shards"),
        ([[0], [0], [], []], 1, "padding-wrong"),
        ([[0, 1, 2]] * 4, 10, "same-shard-on-every-rank"),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], 10, "samples-missing"),
        ([[], [], [], []], 10, "samples-missing"),
        ([[1, 2], [3, 4]], 4, "samples-missing"),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 0]], 10, "padding-wrong"),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], 10, "padding-wrong"),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 6], [8, 9, 8]], 10, "padding-wrong"),
        ([[0, 1, 2], [3, 0, 1]], 4, "wrong-length"),
        ([[0, 2], [1, 3]], 4, "not-contiguous"),
        ([[3, 0], [2, 1]], 4, "not-contiguous"),
        ([[0, 4, 8], [1, 5, 9], [2, 6, 9], [3, 7, 9]], 10, "not-contiguous"),
    ],
)
def test_each_mistake_without_shuffling_has_its_code(shares, num_samples, code):
    assert code_of(shares, num_samples) == code


@pytest.mark.parametrize(
    "shares",
    [
        [[3, 0, 1], [4, 0, 5]],  # two permutations: 2 is in no share, 0 is in both
        [[2, 0, 1], [4, 3, 0]],  # cut first, then shuffled
    ],
)
def test_ranks_that_shuffle_differently_are_reported(shares):
    assert code_of(shares, 5 + (5 in shares[1]), shuffle=True) == "shuffle-differs-across-ranks"


def test_overlapping_chunks_are_not_reported_as_strided_shares():
    order = [1, 3, 8, 5, 0, 9, 2, 7, 4, 6]
    topped_up = [[1, 3, 8], [5, 0, 9], [2, 7, 4], [4, 6, 1]]
    assert sorted({i for share in topped_up for i in share}) == sorted(order)

    assert code_of(topped_up, 10, shuffle=True) == "padding-wrong"


def test_the_explanation_shows_the_case_and_the_indices():
    diagnosis = diagnose_shares([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 9, 9]], 10, shuffle=False)

    assert diagnosis.ranks == (3,)
    assert diagnosis.explanation.startswith("10 samples on 4 ranks: the order is padded with 9, 9")
    assert diagnosis.guide == "Data distribution"


def test_torchs_own_sampler_is_a_shortcut_only_if_its_shares_are_wrong():
    strided = [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]

    assert diagnose_shares(strided, 10, False, shortcut=True).code == "forbidden-shortcut"
    assert diagnose_shares([[0, 1], [2, 3]], 4, False, shortcut=True) is None


def test_repeated_indices_are_found_quickly():
    assert repeated([3, 1, 3, 2, 2, 3]) == [2, 3]
    assert repeated(list(range(500_000)) * 2) == list(range(500_000))


def test_long_lists_are_shortened():
    diagnosis = diagnose_shares([list(range(500))] * 2, 1000, shuffle=False)

    assert "0, 1, 2" in diagnosis.explanation
    assert "(500 in all)" in diagnosis.explanation
    assert len(diagnosis.explanation) < 300


@pytest.mark.parametrize(
    ("shares", "samples", "code"),
    [
        ([[0], [1], [0], [1], []], 2, "padding-wrong"),
        ([[0], [0], []], 1, "padding-wrong"),
        ([[0, 1], [2, 3], [4]], 5, "unequal-shards"),  # not padded at all
    ],
)
def test_an_order_that_is_padded_only_once_is_not_merely_unequal(shares, samples, code):
    assert code_of(shares, samples) == code
