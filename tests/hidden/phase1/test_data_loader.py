"""Who gets which samples: the sampler. Shares come back as lists of indices, one a rank."""

import random

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from gradsync.diagnose.shares import GUIDE, diagnose_shares, some
from gradsync.probes import salt_hashes
from gradsync.testing import check, exercise, hold


def shares_of(sampler_class, num_samples, world_size, *, epoch=None, **options):
    """Return the indices of every rank, as one process can work them all out."""
    shares = []
    for rank in range(world_size):
        sampler = sampler_class(range(num_samples), world_size, rank, **options)
        if epoch is not None:
            sampler.set_epoch(epoch)
        shares.append([int(index) for index in sampler])
    return shares


def probe_shares(data_loader, cases, shuffle, seed=0):
    """Return the shares of every case, and whether they come from torch's own sampler."""
    sampler_class = data_loader.PaddedDistributedSampler
    shares = [shares_of(sampler_class, m, n, shuffle=shuffle, seed=seed) for m, n in cases]
    return [shares, issubclass(sampler_class, DistributedSampler)]


def draw_cases(rng, count=40):
    """Draw (M, N) of every kind: divisible or not, fewer samples than ranks, one of either."""
    drawn = [(int(rng.integers(1, 120)), int(rng.integers(1, 17))) for _ in range(count)]
    return [(10, 4), (8, 4), (1, 4), (3, 8), (7, 1), (1, 1), (2, 3), *drawn]


def joined(shares):
    return [index for share in shares for index in share]


def hold_some(indices):
    """Hold a pass to yield anything: of no indices every order is right."""
    check(
        len(indices) > 0,
        "samples-missing",
        f"going through a sampler of many samples yields no index at all (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


def hold_shuffled(order):
    hold_some(order)
    check(
        list(order) != sorted(order),
        "not-shuffled",
        f"`shuffle` is on, and yet the samples come in the order {some(order)} "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=4)
def test_every_rank_gets_its_chunk_of_the_padded_order(ranks, rng):
    """Without shuffling, rank r gets the r-th contiguous chunk of 0..M-1, padded."""
    cases = draw_cases(rng)

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=False)

    every_share, shortcut = seen
    for (num_samples, _), shares in zip(cases, every_share, strict=True):
        hold(diagnose_shares(shares, num_samples, False, shortcut))


@exercise("phase1/PaddedDistributedSampler", points=3)
def test_shuffled_shares_are_chunks_of_one_padded_permutation(ranks, rng):
    """With shuffling, the ranks' chunks together are a permutation, padded with its beginning."""
    cases = [*draw_cases(rng), (200, 4)]
    seed = int(rng.integers(1000))

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=True, seed=seed)

    every_share, shortcut = seen
    for (num_samples, _), shares in zip(cases, every_share, strict=True):
        hold(diagnose_shares(shares, num_samples, True, shortcut))
    hold_shuffled(joined(every_share[-1]))
    check(
        any(max(share) - min(share) >= 50 for share in every_share[-1]),
        "shuffle-differs-across-ranks",
        "200 samples on 4 ranks: each rank has 50 neighbours, in another order: what is shuffled "
        "is each share by itself. The permutation of all samples comes first, and then the cut "
        f"(GUIDELINES, {GUIDE})",
        ranks=range(4),
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_length_is_the_number_of_indices(ranks, rng):
    """`len(sampler)` is ceil(M/N), on every rank."""

    def probe(data_loader, cases):
        sampler_class = data_loader.PaddedDistributedSampler
        return [[len(sampler_class(range(m), n, rank)) for rank in range(n)] for m, n in cases]

    cases = draw_cases(rng)
    [seen] = ranks(probe, 1, process_group=False, cases=cases)

    for (m, n), lengths in zip(cases, seen, strict=True):
        check(
            lengths == [-(-m // n)] * n,
            "wrong-length",
            f"{m} samples on {n} ranks: `len(sampler)` is {lengths} by rank, "
            f"but every rank gets ceil({m}/{n}) indices (GUIDELINES, {GUIDE})",
            guide=GUIDE,
        )


@exercise("phase1/PaddedDistributedSampler", points=2)
def test_every_process_works_out_the_same_permutation(ranks, rng):
    """The permutation depends on (seed, epoch) alone, whatever the global random state is."""

    def probe(rank, data_loader, seed):
        torch.manual_seed(rank)
        np.random.seed(rank)
        random.seed(rank)
        salt_hashes(rank)
        return shares_of(data_loader.PaddedDistributedSampler, 50, 3, seed=seed, epoch=2)

    seen = ranks(probe, 3, process_group=False, seed=int(rng.integers(1000)))

    hold_some(joined(seen[0]))
    differing = [rank for rank in range(3) if seen[rank] != seen[0]]
    check(
        not differing,
        "shuffle-differs-across-ranks",
        "the same seed and epoch gave another permutation in another process, so the ranks' "
        "shares overlap and leave samples out: something besides (seed, epoch) has a say, such "
        f"as the global random state, the time or the hash of a text (GUIDELINES, {GUIDE})",
        ranks=differing,
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=2)
def test_every_epoch_has_an_order_of_its_own(ranks, rng):
    """Another epoch permutes otherwise, the same epoch the same; a new sampler is at epoch 0."""

    def probe(data_loader, seed):
        sampler = data_loader.PaddedDistributedSampler(range(60), 2, 1, seed=seed)
        passes = [[int(i) for i in sampler]]
        for epoch in (0, 1, 2, 0):
            sampler.set_epoch(epoch)
            passes.append([int(i) for i in sampler])
        return passes

    [seen] = ranks(probe, 1, process_group=False, seed=int(rng.integers(1000)))

    fresh, zero, one, two, again = seen
    hold_shuffled(zero)
    check(
        zero != one and one != two and zero != two,
        "epoch-ignored",
        "two of the epochs 0, 1 and 2 go through the samples in the same order: `set_epoch` has to "
        f"give each epoch a permutation of its own (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        zero == again,
        "epoch-ignored",
        "after `set_epoch(0)` the order is another one the second time: it has to depend on the "
        f"seed and the epoch that was set, not on what came before (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        fresh == zero,
        "epoch-ignored",
        "a new sampler does not go through the samples as after `set_epoch(0)`: epochs count from "
        f"0, and a new sampler is at epoch 0 (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_seed_has_an_order_of_its_own(ranks, rng):
    """Another seed permutes otherwise."""

    def probe(data_loader, seeds):
        return [shares_of(data_loader.PaddedDistributedSampler, 60, 2, seed=s) for s in seeds]

    first = int(rng.integers(1000))
    [seen] = ranks(probe, 1, process_group=False, seeds=[first, first + 1, first + 7])

    hold_shuffled(joined(seen[0]))
    check(
        seen[0] != seen[1] and seen[1] != seen[2] and seen[0] != seen[2],
        "seed-ignored",
        "different seeds gave the same permutation of epoch 0: another seed has to give another "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=2)
def test_the_global_random_state_is_left_alone(ranks):
    """Going through a sampler changes no global random state."""

    def probe(data_loader):
        def states():
            keys = np.random.get_state()
            return [torch.get_rng_state(), repr(random.getstate()), keys[1].copy(), int(keys[2])]

        def differing(before):
            pairs = zip(("torch", "random", "numpy", "numpy"), before, states(), strict=True)
            return sorted(
                {n for n, a, b in pairs if not np.array_equal(np.asarray(a), np.asarray(b))}
            )

        before = states()
        sampler = data_loader.PaddedDistributedSampler(range(50), 2, 0)
        sampler.set_epoch(3)
        order = [int(index) for index in sampler]
        return [differing(before), order]

    [[touched, order]] = ranks(probe, 1, process_group=False)

    hold_shuffled(order)
    check(
        touched == [],
        "global-rng-touched",
        f"the global random state of {' and '.join(map(str, touched))} is another one after a "
        "pass: whatever your model draws next (dropout, augmentation) would depend on "
        f"the sampler (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_bad_arguments_are_refused_by_name(ranks):
    """A world, rank or dataset that can't be is a ValueError that names the argument."""

    def probe(data_loader, cases):
        answers = []
        list(data_loader.PaddedDistributedSampler(range(10), 4, 3))  # good ones are accepted
        for _, samples, num_replicas, rank in cases:
            try:
                sampler = data_loader.PaddedDistributedSampler(range(samples), num_replicas, rank)
                list(sampler)
                answers.append(None)
            except NotImplementedError:
                raise
            except Exception as error:
                answers.append([isinstance(error, ValueError), type(error).__name__, str(error)])
        return answers

    cases = [
        ("num_replicas", 10, 0, 0),
        ("num_replicas", 10, -1, 0),
        ("rank", 10, 4, 4),
        ("rank", 10, 4, -1),
        ("dataset", 0, 4, 0),
    ]
    [seen] = ranks(probe, 1, process_group=False, cases=cases)

    for (name, samples, num_replicas, rank), answer in zip(cases, seen, strict=True):
        got = f"{answer[1]}: {answer[2]}" if answer else "no error at all"
        check(
            answer is not None and answer[0] and name in answer[2],
            "bad-arguments-accepted",
            f"PaddedDistributedSampler over {samples} samples with num_replicas={num_replicas}, "
            f"rank={rank} gave {got}: a ValueError that says {name!r} is wanted "
            f"(GUIDELINES, {GUIDE})",
            guide=GUIDE,
        )
