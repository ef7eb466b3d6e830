"""The rules on strided shares of an epoch, or of the rest of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from support.rules.strides import diagnose_strides, strides

SIZES = st.integers(1, 300), st.integers(1, 16)
RANDOM = st.randoms(use_true_random=False)
SHUFFLED = [3, 7, 0, 9, 4, 1, 8, 2, 6, 5]


def code_of(shares, order, **options):
    diagnosis = diagnose_strides(shares, order, **options)
    return diagnosis.code if diagnosis else None


def torchs(order, world_size, drop_last=False):
    """Return torch's own shares of an order: an independent implementation of the contract."""
    samplers = [
        DistributedSampler(order, world_size, rank, shuffle=False, drop_last=drop_last)
        for rank in range(world_size)
    ]
    return [[order[position] for position in sampler] for sampler in samplers]


@given(*SIZES, st.booleans(), RANDOM)
def test_torchs_shares_of_a_whole_epoch_are_right(samples, world_size, drop_last, random):
    order = random.sample(range(samples), samples)

    assert code_of(torchs(order, world_size, drop_last), order, drop_last=drop_last) is None


@given(*SIZES, st.booleans(), st.data())
def test_torchs_shares_of_the_rest_of_an_epoch_are_right(samples, world_size, drop_last, data):
    seen = data.draw(st.integers(0, samples - 1))
    order = list(range(samples))
    shares = torchs(order[seen:], world_size, drop_last)

    assert code_of(shares, order, seen=seen, drop_last=drop_last) is None


def test_shares_are_empty_if_no_samples_remain():
    assert code_of([[], [], []], range(6), seen=6) is None
    assert code_of([[0], [1], [2]], range(6), seen=6) == "wrong-length"


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 12), st.booleans(), st.data())
def test_all_wrong_shares_get_a_code(samples, world_size, seen, drop_last, data):
    share = st.lists(st.integers(-1, samples), max_size=4)
    shares = data.draw(st.lists(share, min_size=world_size, max_size=world_size))
    order = data.draw(st.permutations(range(samples)))
    seen = min(seen, samples)
    right = strides(order[seen:], world_size, drop_last)

    code = code_of(shares, order, seen=seen, drop_last=drop_last)

    assert (code is None) == (shares == right)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 39), st.booleans(), RANDOM)
def test_one_index_changed_is_noticed(samples, world_size, seen, drop_last, random):
    order = random.sample(range(samples), samples)
    seen = min(seen, samples - 1)
    shares = strides(order[seen:], world_size, drop_last)
    if not shares[0]:
        return
    share = random.choice(shares)
    place = random.randrange(len(share))
    share[place] = random.choice([i for i in range(-1, samples + 1) if i != share[place]])

    assert code_of(shares, order, seen=seen, drop_last=drop_last) is not None


@pytest.mark.parametrize(
    ("shares", "options", "code"),
    [
        ([[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]], {}, "unequal-shards"),
        ([[0, 1, 2]] * 4, {}, "same-shard-on-every-rank"),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], {}, "samples-missing"),
        ([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]], {}, "not-strided"),
        ([[0, 4, 8], [1, 5, 9], [2, 6, 9], [3, 7, 9]], {}, "padding-wrong"),
        ([[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], {"drop_last": True}, "wrong-length"),
        ([[0], [1], [2], [3]], {"drop_last": True}, "samples-missing"),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], {"drop_last": True}, "not-strided"),
        ([[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], {"seen": 4}, "resume-lost"),
        ([[3, 7], [4, 8], [5, 9], [6, 0]], {"seen": 4}, "samples-repeated"),
        ([[4, 8], [5, 9], [6, 0], [7, 1]], {"seen": 4}, "padding-wrong"),
        ([[8], [9], [8], [9]], {"seen": 4}, "samples-missing"),
        ([[4, 5], [6, 7], [8, 9], [4, 5]], {"seen": 4}, "not-strided"),
        ([[4, 8], [5, 9], [6], [7]], {"seen": 4}, "unequal-shards"),
        ([[4, 8], [5, 9], [6, 4], [7, 5]], {"seen": 4, "drop_last": True}, "wrong-length"),
    ],
)
def test_each_mistake_without_shuffling_has_its_code(shares, options, code):
    assert code_of(shares, range(10), **options) == code


@pytest.mark.parametrize(
    ("order", "options", "code"),
    [
        (SHUFFLED[::-1], {}, "shuffle-differs-across-ranks"),
        (list(range(10)), {}, "shuffle-differs-across-ranks"),
        ([*SHUFFLED[:4], *SHUFFLED[:3:-1]], {"seen": 4}, "shuffle-differs-across-ranks"),
        ([2, 0, 7, 4, 1, 3, 5, 6], {"drop_last": True}, "samples-missing"),
    ],
)
def test_a_permutation_that_is_not_the_epochs_is_recognised(order, options, code):
    shares = strides(order[options.get("seen", 0) :], 4, options.get("drop_last", False))

    assert code_of(shares, SHUFFLED, **options) == code


OTHER_ORDER = "not a consecutive part of this epoch's order"


@pytest.mark.parametrize(
    "rest", [[4, 3, 9, 6, 2, 8], [9, 5, 4, 8, 7, 6]], ids=["another epoch's", "cut, then shuffled"]
)
def test_the_rest_of_another_permutation_is_recognised(rest):
    diagnosis = diagnose_strides(strides(rest, 3), SHUFFLED, seen=4)

    assert diagnosis.code == "samples-repeated"
    assert OTHER_ORDER in diagnosis.explanation


@given(*SIZES, st.booleans(), st.data())
def test_a_wrong_position_is_not_reported_as_another_permutation(samples, world_size, chunks, data):
    order = data.draw(st.permutations(range(samples)))
    seen, taken = (data.draw(st.integers(0, samples - 1)) for _ in range(2))
    shares = strides(order[taken:], world_size)
    if chunks:
        dealt = [share[row] for row in range(len(shares[0])) for share in shares]
        rows = len(shares[0])
        shares = [dealt[rank * rows : (rank + 1) * rows] for rank in range(world_size)]

    diagnosis = diagnose_strides(shares, order, seen=seen)

    assert diagnosis is None or OTHER_ORDER not in diagnosis.explanation


def test_shares_that_are_shuffled_separately_are_recognised():
    diagnosis = diagnose_strides([[8, 0, 4], [1, 9, 5], [6, 0, 2], [3, 1, 7]], SHUFFLED)

    assert diagnosis.code == "shuffle-differs-across-ranks"
    assert "each share is shuffled separately" in diagnosis.explanation


def test_the_explanation_shows_the_case_and_the_indices():
    diagnosis = diagnose_strides([[4, 8], [5, 9], [6, 0], [7, 1]], range(10), seen=4)

    assert diagnosis.ranks == (2, 3)
    assert diagnosis.explanation.startswith(
        "10 samples on 4 ranks, resumed after 4 positions: the rest is padded with 0, 1."
    )
    assert diagnosis.guide == "Resumable shares"
