"""Visible tests of ring_all_reduce: numbers that you can follow on paper."""

import numpy as np
import torch

from gradsync.testing import assert_on_every_rank, by_rank, check, exercise, raise_mistake
from support.rules.rings import (
    GUIDE,
    needs_no_other_rank,
    not_point_to_point,
    receives_not_awaited,
    ring_mistakes,
    sends_not_awaited,
    too_much_sent,
)
from support.rules.rounding import OF_FLOAT64, rounded
from support.rules.waiting import everyone_sends


def probe_sums(rank, trainer, tensors):
    """Sum this rank's part of each array (rank, ...)."""
    mine = [torch.from_numpy(np.array(parts[rank])) for parts in tensors]
    for tensor in mine:
        trainer.ring_all_reduce(tensor)
    return mine


def run(ranks, *tensors):
    failures = [everyone_sends(GUIDE), needs_no_other_rank]
    given = by_rank(list(tensors), 1)
    seen = ranks(probe_sums, len(tensors[0]), tensors=given, mistakes=failures)
    raise_mistake(receives_not_awaited(seen))
    return seen


def parts_of(world_size, *shape):
    """Return the ranks' parts of a tensor: rank r has 10^r times 1, 2, 3, ..."""
    first = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.float32).reshape(shape)
    return np.stack([10**rank * first for rank in range(world_size)])


def assert_sums(seen, *tensors, mistakes=(), **options):
    """Compare every rank's tensors with the sums of all parts."""
    sums = [parts.sum(0) for parts in tensors]
    shown = " and ".join(str(total.tolist()) for total in sums)
    assert_on_every_rank(
        seen,
        sums,
        mistakes=[*mistakes, *ring_mistakes(tensors)],
        otherwise=f"the tensors should become {shown}",
        **options,
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_three_ranks_sum_six_elements(ranks):
    """Rank 0 has 1 to 6, rank 1 has 10 to 60, rank 2 has 100 to 600: the sums are 111 to 666."""
    parts = parts_of(3, 6)

    seen = run(ranks, parts)

    assert_sums(seen, parts)


@exercise("phase2/ring_all_reduce", points=1)
def test_only_sends_and_receives_move_data(ranks):
    """No rank calls a collective, such as all_reduce."""
    seen = run(ranks, parts_of(3, 6))

    raise_mistake(not_point_to_point(seen))
    check(
        any(seen.collectives(rank) for rank in range(3)),
        "gradients-not-synchronised",
        "ring_all_reduce sends nothing. Build the sum from sends and receives.",
        guide=GUIDE,
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_every_send_and_receive_is_awaited(ranks):
    """When ring_all_reduce returns, no send or receive of a rank is still open."""
    parts = parts_of(3, 6)

    seen = run(ranks, parts)

    raise_mistake(sends_not_awaited(seen))
    assert_sums(seen, parts)


@exercise("phase2/ring_all_reduce", points=1)
def test_each_rank_sends_four_chunks(ranks):
    """On 3 ranks, 6 elements are 3 chunks of 2, and each rank sends 4 chunks: 8 elements."""
    parts = parts_of(3, 6)

    seen = run(ranks, parts)

    raise_mistake(too_much_sent(seen, 6))
    assert_sums(seen, parts)


@exercise("phase2/ring_all_reduce", points=1)
def test_any_size_on_any_number_of_ranks(ranks):
    """Four ranks sum 6 elements, then 1 element; a single rank keeps its numbers."""
    for tensors in ((parts_of(4, 6), parts_of(4, 1)), (parts_of(1, 4),)):
        seen = run(ranks, *tensors)

        assert_sums(seen, *tensors)


@exercise("phase2/ring_all_reduce", points=1)
def test_any_shape(ranks):
    """Two ranks sum a matrix of 2 rows and 3 columns, and a tensor without dimensions."""
    matrix, number = parts_of(2, 2, 3), parts_of(2)

    seen = run(ranks, matrix, number)

    assert_sums(seen, matrix, number)


COLUMN = (
    "the matrix is [[1, 2], [3, 4], [5, 6]] on rank 0 and ten times that on rank 1. Its second "
    "column should become [22, 44, 66], and the first should not change, but the matrices become "
)


@exercise("phase2/ring_all_reduce", points=1)
def test_a_column_of_a_matrix(ranks):
    """The second column of a matrix is summed in place, and the first is left alone."""

    def probe(rank, trainer):
        matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) * 10**rank
        trainer.ring_all_reduce(matrix[:, 1])
        return matrix.tolist()

    seen = ranks(probe, world_size=2)

    whole = parts_of(2, 3, 2)
    check(
        not all(np.array_equal(seen[rank], whole[rank]) for rank in range(2)),
        "gradients-not-synchronised",
        "The second column of a matrix is unchanged: a column is not contiguous, and the sum is "
        "in a copy of it. Copy it back into the tensor.",
        guide=GUIDE,
    )
    for rank in range(2):
        whole[rank, :, 1] = [22, 44, 66]
    check(
        all(np.array_equal(seen[rank], whole[rank]) for rank in range(2)),
        "wrong-chunk",
        f"{COLUMN}{list(seen)}.",
        guide=GUIDE,
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_every_dtype_as_it_is(ranks):
    """2**60 + 1 and 2**60 + 2 become 2**61 + 3; float64 is summed in double precision."""
    integers = np.array([[2**60 + 1, 5, 7], [2**60 + 2, 50, 70]])
    doubles = np.array([[1 / 3, 2.0], [10 / 3, 20.0]])

    seen = run(ranks, integers, doubles)

    nearly = rounded("the sum over the ranks", GUIDE)
    assert_sums(seen, integers, doubles, mistakes=[nearly], roundings=OF_FLOAT64)
    inexact = [rank for rank in range(2) if not np.array_equal(seen[rank][0], integers.sum(0))]
    check(
        not inexact,
        "shape-mismatch",
        f"2**60 + 1 and 2**60 + 2 become {[int(value[0][0]) for value in seen]}, but their sum is "
        f"{2**61 + 3}: they were converted to floats, which have at most 53 bits. Send and add in "
        "the tensor's own dtype.",
        ranks=inexact,
        guide=GUIDE,
    )
