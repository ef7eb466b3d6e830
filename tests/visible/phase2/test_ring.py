"""Visible tests of ring_all_reduce: numbers that you can follow on paper."""

import math

import torch

from gradsync.testing import assert_on_every_rank, check, exercise
from gradsync.text import listed
from support.rules.wrong_results import ends_with

GUIDE = "The ring"


def probe_sum(rank, trainer, size):
    """Sum `size` elements, of which rank r has 10^r times 1, 2, 3, ..."""
    tensor = torch.arange(1.0, size + 1) * 10**rank
    trainer.ring_all_reduce(tensor)
    return tensor.tolist()


def check_sum(seen, size):
    factor = sum(10**rank for rank in range(len(seen)))
    expected = [float(factor * number) for number in range(1, size + 1)]
    own = [[float(10**rank * number) for number in range(1, size + 1)] for rank in range(len(seen))]
    assert_on_every_rank(
        seen,
        expected,
        mistakes=[
            ends_with(
                own,
                "gradients-not-synchronised",
                f"Every rank's `tensor` is unchanged, but should become {expected}. Write the sum "
                "into `tensor` itself.",
                GUIDE,
            ),
        ],
        otherwise=f"rank r has 10^r times 1 to {size}, so the sum is {expected}, but the ranks' "
        f"tensors become {list(seen)}. Find out which chunk is wrong, and in which pass",
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_three_ranks_sum_six_elements(ranks):
    """Rank 0 has 1 to 6, rank 1 has 10 to 60, rank 2 has 100 to 600: the sums are 111 to 666."""
    seen = ranks(probe_sum, world_size=3, size=6)

    check_sum(seen, 6)


@exercise("phase2/ring_all_reduce", points=1)
def test_the_size_need_not_be_a_multiple_of_the_ranks(ranks):
    """Four ranks sum 6 elements: two chunks have two elements, the others have one."""
    seen = ranks(probe_sum, world_size=4, size=6)

    check_sum(seen, 6)


@exercise("phase2/ring_all_reduce", points=1)
def test_a_single_element(ranks):
    """Three ranks sum one element: 1, 10 and 100 become 111."""
    seen = ranks(probe_sum, world_size=3, size=1)

    check_sum(seen, 1)


@exercise("phase2/ring_all_reduce", points=1)
def test_a_single_rank_already_has_the_sum(ranks):
    """A single rank keeps its numbers, and does not wait."""
    seen = ranks(probe_sum, world_size=1, size=4)

    check_sum(seen, 4)


@exercise("phase2/ring_all_reduce", points=1)
def test_a_column_of_a_matrix(ranks):
    """The second column of a matrix is summed in place."""

    def probe(rank, trainer):
        matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) * 10**rank
        trainer.ring_all_reduce(matrix[:, 1])
        return matrix[:, 1].tolist()

    seen = ranks(probe, world_size=2)

    assert_on_every_rank(
        seen,
        [22.0, 44.0, 66.0],
        otherwise="the matrix is [[1, 2], [3, 4], [5, 6]] on rank 0 and ten times that on rank 1. "
        f"The second columns should become [22, 44, 66], but they become {list(seen)}. A column is "
        "not contiguous: you may have summed a copy of it",
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_each_rank_sends_four_chunks(ranks):
    """On 3 ranks, 6 elements are 3 chunks of 2, and each rank sends 4 chunks: 8 elements."""
    seen = ranks(probe_sum, world_size=3, size=6)

    calls = [seen.collectives(rank) for rank in range(3)]
    others = sorted({c.op for mine in calls for c in mine} - {"send", "recv", "new_group"})
    check(
        not others,
        "forbidden-shortcut",
        f"ring_all_reduce calls {listed(others)}. In this exercise, build the "
        "sum from only sends and receives.",
        guide=GUIDE,
    )
    sent = [sum(math.prod(s) for c in mine if c.op == "send" for s in c.shapes) for mine in calls]
    check(
        max(sent) <= 8,
        "too-many-bytes",
        f"To sum 6 elements, the ranks send {listed(sent)} elements. 6 elements are 3 chunks of "
        "2, and in a ring each rank sends 2 chunks in the first pass and 2 in the second: 8 "
        "elements.",
        ranks=[rank for rank in range(3) if sent[rank] > 8],
        guide=GUIDE,
    )
