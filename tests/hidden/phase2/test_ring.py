"""The ring: a sum over the ranks made of only sends and receives, with few bytes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradsync.records import Diagnosis
from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    check,
    each,
    exercise,
)
from gradsync.testing.traffic import bytes_by_rank
from gradsync.testing.values import ROUNDINGS
from gradsync.text import counted, listed
from support.rules.rings import GUIDE, some_chunks_wrong
from support.rules.rounding import OF_FLOAT64, rounded
from support.rules.wrong_results import ends_with

ALLOWED = ("send", "recv", "new_group")  # creating a group moves no data


def probe_sums(rank, trainer, tensors):
    """Sum this rank's part of each array, one after another; return the results."""
    mine = [torch.from_numpy(parts[rank].copy()) for parts in tensors]
    for tensor in mine:
        trainer.ring_all_reduce(tensor)
    return mine


def everyone_sends(seen, _expected):
    """Recognise a deadlock in which every rank waits in a send, so that no rank receives."""
    failure = seen.failure
    last = [calls[-1].op for r in range(seen.world_size) if (calls := seen.collectives(r))]
    if failure is None or failure.status != "deadlock" or set(last) != {"send"}:
        return None
    found = failure.diagnosis
    text = (
        f"{found.explanation} Every rank waits in a send, so no rank receives. A send may block "
        "until its receiver arrives: start the receive first, or send asynchronously."
    )
    return Diagnosis(found.code, found.ranks, text, found.where, GUIDE)


def needs_no_other_rank(seen, _expected):
    """Recognise a single rank that fails: it has no other rank to send to, and nothing to add."""
    failure = seen.failure
    if failure is None or seen.world_size > 1 or failure.status not in ("error", "deadlock"):
        return None
    found = failure.diagnosis
    advice = "With one rank, the tensor is already the sum: return without communication."
    return replace(found, explanation=f"{found.explanation} {advice}")


def check_point_to_point(seen):
    """Check that only sends and receives moved data."""
    others = {r: [c for c in seen.collectives(r) if c.op not in ALLOWED] for r in range(4)}
    guilty = [rank for rank, calls in others.items() if calls]
    first = others[guilty[0]][0] if guilty else None
    check(
        not guilty,
        "forbidden-shortcut",
        f"ring_all_reduce calls {first.op if first else ''} at {first.where if first else ''}. In "
        "this exercise, build the sum from only sends and receives.",
        ranks=guilty,
        guide=GUIDE,
    )


def check_that_it_waits(seen):
    """Check that each rank waits for every receive: otherwise the sum is a race."""
    why = "The sum is a race: the data may not have arrived when it is used."
    check_ended(seen, started(seen, "recv"), why)


def check_that_its_sends_are_over(seen):
    """Check that each rank waits for its last send to each rank, and so for all before it."""
    last = {(event.rank, event.collective.peer): event for event in started(seen, "send")}
    why = "It may still read the tensor after ring_all_reduce returns, when the caller changes it."
    check_ended(seen, last.values(), why)


def started(seen, op):
    """Return the events of all ranks' calls of one operation, in order on each rank."""
    return [e for e in seen.events if e.collective is not None and e.collective.op == op]


def check_ended(seen, calls, why):
    """Check that the ranks waited for each of these calls."""
    ended = {(event.rank, event.call) for event in seen.events if event.kind == "exit"}
    open_ones = [event for event in calls if (event.rank, event.call) not in ended]
    first = open_ones[0].collective if open_ones else None
    check(
        not open_ones,
        "no-rank-waits",
        f"ring_all_reduce never waits for the {first.op if first else ''} that starts at "
        f"{first.where if first else ''}. {why} Wait for it before you return.",
        ranks=sorted({event.rank for event in open_ones}),
        guide=GUIDE,
    )


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
    seen = ranks(probe, world_size, mistakes=[everyone_sends, needs_no_other_rank], **inputs)
    check_point_to_point(seen)
    check_that_it_waits(seen)
    return seen


def sum_mistakes(tensors):
    """Return the rules that recognise a mistake by the results, given all parts of each array."""
    world_size = len(tensors[0])
    own = [[parts[rank] for parts in tensors] for rank in range(world_size)]
    means = [parts.sum(0) / world_size for parts in tensors]
    rules = [
        ends_with(
            own,
            "gradients-not-synchronised",
            "Every rank's `tensor` is unchanged. Write the sum into `tensor` itself, not into a "
            "copy.",
            GUIDE,
        ),
        ends_with(
            [means] * world_size,
            "divided-twice",
            "Every rank has the mean over the ranks. ring_all_reduce must compute the sum.",
            GUIDE,
        ),
    ]
    nearly = rounded("the sum over the ranks", GUIDE)
    return [*rules, nearly, some_chunks_wrong] if world_size > 1 else []


def check_sums(seen, tensors, otherwise, roundings=ROUNDINGS):
    assert_on_every_rank(
        seen,
        [parts.sum(0) for parts in tensors],
        mistakes=sum_mistakes(tensors),
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
    most = 2 * (world_size - 1) * math.ceil(size / world_size) * 4
    sent = bytes_by_rank(seen)
    guilty = [rank for rank, number in enumerate(sent) if number > most]
    check(
        not guilty,
        "too-many-bytes",
        f"For a tensor of {4 * size} bytes on {world_size} ranks, the ranks send {listed(sent)} "
        f"bytes. In a ring, every rank sends 2(N-1) chunks of an Nth of the tensor, here {most} "
        "bytes.",
        ranks=guilty,
        guide=GUIDE,
    )


@exercise("phase2/ring_all_reduce", points=1.5)
def test_fewer_elements_than_ranks(ranks, rng):
    """A tensor with a single element, or with fewer elements than ranks, becomes the sum."""
    world_size, sizes = 3, [1, 2]
    tensors = [rng.standard_normal((world_size, n), dtype=np.float32) for n in sizes]
    tensors.append(rng.standard_normal(world_size, dtype=np.float32).reshape(world_size))

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

    check_that_its_sends_are_over(seen)
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
