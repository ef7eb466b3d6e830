"""Shares without repetition: a dataset split over ranks, and a batch split into microbatches."""

from functools import partial

import torch

from gradsync.testing import check, exercise, raise_mistake
from support.probes import raised
from support.probes.returned import items_of
from support.rules.parts import (
    MICROBATCHES,
    SHARDS,
    not_ranges,
    not_refused,
    other_kinds,
    other_number,
    uneven_parts,
)


def probe_shards(data_loader, cases):
    """Return each rank's share in every case: the name of its type, and its indices."""
    shards = [[data_loader.shard_without_padding(m, n, r) for r in range(n)] for m, n in cases]
    return [
        [[type(s).__name__, [int(i) for i in items_of(s, "a share")]] for s in shares]
        for shares in shards
    ]


@exercise("phase2/shard_without_padding", points=3)
def test_shards_are_even_and_cover_all(ranks, rng):
    """The shares are contiguous, disjoint, complete and even, and larger ones come first."""

    drawn = [(int(rng.integers(1, 200)), int(rng.integers(1, 17))) for _ in range(40)]
    cases = [(10, 4), (8, 4), (7, 1), (11, 3), (7, 4), *drawn]
    [seen] = ranks(probe_shards, 1, process_group=False, cases=cases)

    for (m, n), shares in zip(cases, seen, strict=True):
        parts = [part for _, part in shares]
        if [index for part in parts for index in part] != [*range(m)]:
            raise_mistake(not_ranges([kind for kind, _ in shares], f"{m} samples on {n} ranks"))
        raise_mistake(uneven_parts(parts, m, f"{m} samples on {n} ranks", SHARDS))


@exercise("phase2/shard_without_padding", points=1)
def test_a_rank_may_have_an_empty_shard(ranks, rng):
    """A share is a `range`, which is empty on some ranks if there are fewer samples than ranks."""

    few = int(rng.integers(1, 6))
    cases = [(few, 6), (1, 4), (2, 3), (0, 2), (0, 1), (16, 16)]
    [seen] = ranks(probe_shards, 1, process_group=False, cases=cases)

    for (m, n), shares in zip(cases, seen, strict=True):
        case = f"{m} samples on {n} ranks"
        raise_mistake(uneven_parts([part for _, part in shares], m, case, SHARDS))
        raise_mistake(not_ranges([kind for kind, _ in shares], case))


def probe_parts(data_loader, batches, num_parts):
    """Return whether the parts' types are right, their tensors, and whether these are views.

    A tensor is described by its values, its shape and its dtype.
    """
    seen = []
    for batch, number in zip(batches, num_parts, strict=True):
        parts = data_loader.split_microbatches(tuple(batch), number)
        is_list, parts = (
            isinstance(parts, list),
            items_of(parts, "the result of split_microbatches"),
        )
        kinds = [is_list, *(isinstance(part, tuple) for part in parts)]
        tensors = [[[t.tolist(), list(t.shape), str(t.dtype)] for t in part] for part in parts]
        views = [lies_in(t, whole) for part in parts for t, whole in zip(part, batch, strict=False)]
        seen.append([kinds, tensors, views])
    return seen


def lies_in(tensor, whole):
    """Return whether a tensor shares the memory of `whole`, however the view was created."""
    memory = whole.untyped_storage()
    return 0 <= tensor.data_ptr() - memory.data_ptr() < memory.nbytes()


def draw_batch(rng, samples):
    """Draw a batch of three tensors; the first one contains each sample's number."""
    return [
        torch.arange(samples),
        torch.from_numpy(rng.standard_normal((samples, 3, 2))),
        torch.from_numpy(rng.standard_normal(samples)).float(),
    ]


def check_like(part, batch, case):
    """Check that each tensor of a part has the same dimensions and dtype as in the batch."""
    for (_, shape, kind), whole in zip(part, batch, strict=True):
        check(
            len(shape) == whole.dim() and shape[1:] == list(whole.shape[1:]),
            "wrong-length",
            f"{case}: a tensor of shape {list(whole.shape)} has the shape {shape} in a part. Keep "
            "all dimensions of the batch, and only reduce dim 0, even for a single sample.",
            guide=MICROBATCHES,
        )
        check(
            kind == str(whole.dtype),
            "tensors-replaced",
            f"{case}: a tensor of {whole.dtype} has the dtype {kind} in a part, so it is a copy. "
            "The parts must be views of the batch's memory.",
            guide=MICROBATCHES,
        )


def draw_splits(rng):
    """Draw (samples, parts): one part, one sample per part, even and uneven sizes."""
    drawn = [int(rng.integers(2, 40)) for _ in range(12)]
    return [(10, 4), (8, 4), (5, 5), (6, 1), (1, 1), (7, 4)] + [
        (samples, int(rng.integers(1, samples + 1))) for samples in drawn
    ]


@exercise("phase2/split_microbatches", points=2)
def test_a_batch_is_split_in_order_and_evenly(ranks, rng):
    """Each tensor is split along dim 0 in the same way: in order, evenly, larger parts first."""
    splits = draw_splits(rng)
    batches = [
        draw_batch(rng, samples)[: 1 + number % 3] for number, (samples, _) in enumerate(splits)
    ]

    [seen] = ranks(
        probe_parts, 1, process_group=False, batches=batches, num_parts=[n for _, n in splits]
    )

    for (samples, number), batch, (kinds, parts, _) in zip(splits, batches, seen, strict=True):
        case = f"A batch of {samples} samples in {number} parts"
        raise_mistake(other_kinds(kinds, case))
        raise_mistake(other_number(parts, number, len(batch), case))
        for part in parts:
            check_like(part, batch, case)
        numbers = [part[0][0] for part in parts]
        raise_mistake(uneven_parts(numbers, samples, case, MICROBATCHES))
        check(
            all(
                values == whole[own].tolist()
                for own, part in zip(numbers, parts, strict=True)
                for (values, *_), whole in zip(part, batch, strict=True)
            ),
            "microbatch-order",
            f"{case}: the tensors are not split in the same way, so for example the targets in a "
            "part do not belong to its inputs. Split every tensor at the same positions.",
            guide=MICROBATCHES,
        )


@exercise("phase2/split_microbatches", points=1)
def test_the_parts_are_views_of_the_batch(ranks, rng):
    """The parts are views of the batch, even if it is not contiguous: no sample is copied."""
    batches = [draw_batch(rng, samples) for samples in (10, 6, 3)]
    batches.append([torch.from_numpy(rng.standard_normal((2, 4, 7))).transpose(0, 2)])

    [seen] = ranks(probe_parts, 1, process_group=False, batches=batches, num_parts=[4, 1, 3, 2])

    for batch, number, (_, parts, views) in zip(batches, (4, 1, 3, 2), seen, strict=True):
        case = f"A batch of {len(batch[0])} samples in {number} parts"
        raise_mistake(other_number(parts, number, len(batch), case))
        laid_out = "" if batch[0].is_contiguous() else ", which is not contiguous in memory,"
        check(
            all(views),
            "tensors-replaced",
            f"A batch of {len(batch[0])} samples{laid_out} in {number} parts: a part is a copy, so "
            "a change to it does not change the batch. The parts must be views of the batch.",
            guide=MICROBATCHES,
        )


@exercise("phase2/split_microbatches", points=1)
def test_more_parts_than_samples_are_refused(ranks, rng):
    """More parts than samples, or fewer than one part, raise a ValueError."""

    def probe(data_loader, cases):
        answers = []
        data_loader.split_microbatches((torch.zeros(3, 2),), 2)  # fewer parts are accepted
        for samples, number in cases:
            batch = (torch.zeros(samples, 2),)
            error = raised(partial(data_loader.split_microbatches, batch, number))
            got = f"a different error ({type(error).__name__}: {error})" if error else "no error"
            answers.append(None if isinstance(error, ValueError) else got)
        return answers

    samples = int(rng.integers(2, 9))
    cases = [(samples, samples + 1), (1, 2), (samples, 0), (samples, -1), (samples, 10 * samples)]
    [seen] = ranks(probe, 1, process_group=False, cases=cases)

    raise_mistake(not_refused(seen, cases))
