"""The ring: a sum over the ranks made of only sends and receives, with few bytes."""

import numpy as np
import pytest
import torch

from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.traffic import bytes_by_rank
from gradsync.testing.values import ROUNDINGS
from gradsync.text import counted, listed
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
from support.rules.wrong_results import ends_with


def probe_sums(rank, trainer, tensors):
    """Sum this rank's part of each array, one after another; return the results."""
    mine = [torch.from_numpy(parts[rank].copy()) for parts in tensors]
    for tensor in mine:
        trainer.ring_all_reduce(tensor)
    return mine


def check_that_it_sends(seen, size):
    """Check that the ranks sent enough bytes to add up all parts and to return the sum to all."""
    sent, least = sum(bytes_by_rank(seen)), 2 * (seen.world_size - 1) * size
    check(
        sent >= least,
        "tampering",
        f"The ranks report that they sent {sent} bytes in all. A sum over {seen.world_size} ranks "
        f"needs at least {least}, so the sum was not computed with these sends.",
        guide=GUIDE,
    )


def run(ranks, probe, world_size, **inputs):
    seen = ranks(probe, world_size, mistakes=[everyone_sends(GUIDE), needs_no_other_rank], **inputs)
    raise_mistake(not_point_to_point(seen))
    raise_mistake(receives_not_awaited(seen))
    return seen


def check_sums(seen, tensors, otherwise, roundings=ROUNDINGS):
    assert_on_every_rank(
        seen,
        [parts.sum(0) for parts in tensors],
        mistakes=[rounded("the sum over the ranks", GUIDE), *ring_mistakes(tensors)],
        otherwise=otherwise,
        roundings=roundings,
    )
    check_that_it_sends(seen, sum(parts[0].nbytes for parts in tensors))


@pytest.mark.parametrize("world_sizes", [(4,), (2, 1)], ids=["4", "2 and 1"])
@exercise("phase2/ring_all_reduce", points=3)
def test_every_rank_ends_with_the_sum(ranks, rng, world_sizes):
    """Tensors of any size become the sum over the ranks."""
    for world_size in world_sizes:  # on a single rank, doing nothing is correct
        whole = int(rng.integers(4, 8)) * world_size
        tensors = [
            rng.standard_normal((world_size, n), dtype=np.float32) for n in (whole, whole + 1)
        ]

        seen = run(ranks, probe_sums, world_size, tensors=by_rank(tensors, 1))

        check_sums(
            seen,
            tensors,
            f"two tensors, of {whole} and {whole + 1} elements, on {counted(world_size, 'rank')} "
            "do not both become the sum over the ranks",
        )


@exercise("phase2/ring_all_reduce", points=3)
def test_no_rank_sends_more_than_its_part(ranks, rng):
    """Each rank sends at most 2(N-1) chunks, each an Nth of the tensor, rounded up."""
    world_size = 4
    size = int(rng.integers(40, 50)) * world_size + 1
    tensors = [rng.standard_normal((world_size, size), dtype=np.float32)]

    seen = run(ranks, probe_sums, world_size, tensors=by_rank(tensors, 1))

    check_sums(seen, tensors, f"{size} elements do not become the sum over {world_size} ranks")
    raise_mistake(too_much_sent(seen, size))


@exercise("phase2/ring_all_reduce", points=1.5)
def test_fewer_elements_than_ranks(ranks, rng):
    """A tensor with a single element, or with fewer elements than ranks, becomes the sum."""
    world_size, sizes = 3, [1, 2]
    # All are positive: a sum near 0 would have only the digits that depend on the order.
    shapes = [*((world_size, n) for n in sizes), (world_size,)]
    tensors = [rng.uniform(0.5, 2, shape).astype(np.float32) for shape in shapes]

    def probe(rank, trainer, tensors):
        *vectors, numbers = tensors
        mine = [torch.from_numpy(parts[rank].copy()) for parts in vectors]
        mine.append(torch.tensor(float(numbers[rank])))  # without a dimension
        for tensor in mine:
            trainer.ring_all_reduce(tensor)
        return mine

    seen = run(ranks, probe, world_size, tensors=by_rank(tensors, 1))

    check_sums(
        seen,
        tensors,
        f"tensors of {listed(sizes)} elements and one without a dimension do not all become the "
        f"sum over {world_size} ranks",
    )


@exercise("phase2/ring_all_reduce", points=1.5)
def test_any_shape_in_place(ranks, rng):
    """Contiguous tensors, columns, transposed tensors and slices are summed in place."""
    parts = rng.standard_normal((3, 5, 4, 2), dtype=np.float32)  # (rank, ...)

    def probe(rank, trainer, parts):
        column, turned, cut, plain = (torch.from_numpy(parts[rank].copy()) for _ in range(4))
        trainer.ring_all_reduce(plain)
        trainer.ring_all_reduce(column[:, 1, 0])
        trainer.ring_all_reduce(turned.permute(2, 0, 1).unsqueeze(1))
        trainer.ring_all_reduce(cut[1:4, ::2])
        return [plain, column, turned, cut]

    seen = run(ranks, probe, 3, parts=by_rank(parts))

    raise_mistake(sends_not_awaited(seen))
    plain = "a tensor of three dimensions does not become the sum over the ranks"
    check_sums(each(seen, lambda value: value[:1]), [parts], plain)
    total = parts.sum(0)
    expected = []
    for own in parts:
        column, cut = own.copy(), own.copy()
        column[:, 1, 0] = total[:, 1, 0]
        cut[1:4, ::2] = total[1:4, ::2]
        expected.append([column, total, cut])
    untouched = ends_with(
        [[own, own, own] for own in parts],
        "gradients-not-synchronised",
        "Tensors that are not contiguous, such as a column or a transposed tensor, are unchanged: "
        "the sum is in a copy of them. Copy it back into the tensor.",
        GUIDE,
    )
    assert_rank_by_rank(
        each(seen, lambda value: value[1:]),
        expected,
        mistakes=[untouched],
        otherwise="a column, a transposed tensor or a strided slice is not the sum, or the "
        "elements beside it were changed (these tensors are not contiguous)",
    )
    one = parts[0]
    check_that_it_sends(seen, 2 * one.nbytes + one[:, 1, 0].nbytes + one[1:4, ::2].nbytes)


@exercise("phase2/ring_all_reduce", points=1)
def test_every_dtype_as_it_is(ranks, rng):
    """Integers are summed exactly, and float64 in double precision."""
    integers = rng.integers(2**60, 2**61, (2, 7))  # (rank, element); float64 can't represent them
    doubles = rng.standard_normal((2, 4, 2))

    seen = run(ranks, probe_sums, 2, tensors=by_rank([integers, doubles], 1))

    check_sums(
        seen,
        [integers, doubles],
        "an int64 or float64 tensor does not become the sum over the ranks (send and add in the "
        "tensor's own dtype)",
        roundings=OF_FLOAT64,
    )
    inexact = [r for r in range(2) if not np.array_equal(seen[r][0], integers.sum(0))]
    check(
        not inexact,
        "shape-mismatch",
        "Only the first digits of the sum of int64 numbers are correct: they were converted to "
        "floats, which have at most 53 bits. Send and add in the tensor's own dtype.",
        ranks=inexact,
        guide=GUIDE,
    )
