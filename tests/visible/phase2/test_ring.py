"""What `gradsync check` tries on ring_all_reduce: numbers to follow on paper."""

import math

import torch

from gradsync.testing import assert_on_every_rank, check, exercise, would_be

GUIDE = "The ring"


def probe_sum(rank, trainer, size):
    """Sum `size` elements, of which rank r has 10^r times 1, 2, 3, ..."""
    tensor = torch.arange(1.0, size + 1) * 10**rank
    trainer.ring_all_reduce(tensor)
    return tensor.tolist()


def hold_sum(seen, size):
    factor = sum(10**rank for rank in range(len(seen)))
    expected = [float(factor * number) for number in range(1, size + 1)]
    own = [[float(10**rank * number) for number in range(1, size + 1)] for rank in range(len(seen))]
    assert_on_every_rank(
        seen,
        expected,
        mistakes=[
            would_be(
                own,
                "gradients-not-synchronised",
                f"every rank still has its own numbers: `tensor` itself is to become {expected}",
                GUIDE,
            ),
        ],
        otherwise=f"rank r has 10^r times 1 to {size}, so that the sum is {expected}, but by rank "
        f"it becomes {list(seen)}. Which chunk went astray, and in which of the two passes?",
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_three_ranks_sum_six_elements(ranks):
    """Rank 0 has 1 to 6, rank 1 ten times, rank 2 a hundred times as much: 111 to 666."""
    seen = ranks(probe_sum, world_size=3, size=6)

    hold_sum(seen, 6)


@exercise("phase2/ring_all_reduce", points=1)
def test_elements_need_not_divide(ranks):
    """Four ranks sum 6 elements: two chunks have two elements, the others one."""
    seen = ranks(probe_sum, world_size=4, size=6)

    hold_sum(seen, 6)


@exercise("phase2/ring_all_reduce", points=1)
def test_a_single_element(ranks):
    """Three ranks sum one element: 1, 10 and 100 become 111."""
    seen = ranks(probe_sum, world_size=3, size=1)

    hold_sum(seen, 1)


@exercise("phase2/ring_all_reduce", points=1)
def test_one_rank_has_the_sum_already(ranks):
    """Alone, a rank keeps what it has, and waits for nobody."""
    seen = ranks(probe_sum, world_size=1, size=4)

    hold_sum(seen, 4)


@exercise("phase2/ring_all_reduce", points=1)
def test_a_column_of_a_matrix(ranks):
    """The second column is summed where it lies, and the first stays as it was."""

    def probe(rank, trainer):
        matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) * 10**rank
        trainer.ring_all_reduce(matrix[:, 1])
        return matrix[:, 1].tolist()

    seen = ranks(probe, world_size=2)

    assert_on_every_rank(
        seen,
        [22.0, 44.0, 66.0],
        otherwise="the second column of [[1, 2], [3, 4], [5, 6]], and of ten times as much on rank "
        f"1, should become [22, 44, 66] on both, but becomes {list(seen)}. A column is not one "
        "piece of memory: what you sum may be a copy of it",
    )


@exercise("phase2/ring_all_reduce", points=1)
def test_each_rank_sends_four_chunks(ranks):
    """On 3 ranks, 6 elements are 3 chunks of 2, and each rank sends 2(N-1) = 4 chunks: 8."""
    seen = ranks(probe_sum, world_size=3, size=6)

    calls = [seen.collectives(rank) for rank in range(3)]
    others = sorted({c.op for mine in calls for c in mine} - {"send", "recv", "new_group"})
    check(
        not others,
        "forbidden-shortcut",
        f"ring_all_reduce calls {', '.join(others)}: sends and receives alone are to make the sum",
        guide=GUIDE,
    )
    sent = [sum(math.prod(s) for c in mine if c.op == "send" for s in c.shapes) for mine in calls]
    check(
        max(sent) <= 8,
        "too-many-bytes",
        f"to sum 6 elements, the ranks send {sent} elements, by rank. 6 elements are 3 chunks of "
        "2, and a ring sends 2 chunks in the first pass and 2 in the second: 8 elements",
        ranks=[rank for rank in range(3) if sent[rank] > 8],
        guide=GUIDE,
    )
