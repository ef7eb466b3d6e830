"""Who gets which samples. Shares come back as lists of indices, one a rank."""

import random

import numpy as np
import torch
from torch.utils.data import TensorDataset

from gradsync.diagnose.shares import GUIDE, diagnose_shares
from gradsync.testing import Mistake, check, exercise

LOADERS = "Data loaders"


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
    sampler_class = data_loader.PaddedDistributedSampler
    return [shares_of(sampler_class, m, n, shuffle=shuffle, seed=seed) for m, n in cases]


def draw_cases(rng, count=40):
    """Draw (M, N) of every kind: divisible or not, fewer samples than ranks, one of either."""
    drawn = [(int(rng.integers(1, 120)), int(rng.integers(1, 17))) for _ in range(count)]
    return [(10, 4), (8, 4), (1, 4), (3, 8), (7, 1), (1, 1), (2, 3), *drawn]


def hold_shares(shares, num_samples, shuffle):
    diagnosis = diagnose_shares(shares, num_samples, shuffle)
    if diagnosis is not None:
        raise Mistake(diagnosis.explanation, diagnosis)


@exercise("phase1/PaddedDistributedSampler", points=4)
def test_every_rank_gets_its_chunk_of_the_padded_order(ranks, rng):
    """Without shuffling, rank r gets the r-th contiguous chunk of 0..M-1, padded."""
    cases = draw_cases(rng)

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=False)

    for (num_samples, _), shares in zip(cases, seen, strict=True):
        hold_shares(shares, num_samples, shuffle=False)


@exercise("phase1/PaddedDistributedSampler", points=3)
def test_shuffled_shares_are_chunks_of_one_padded_permutation(ranks, rng):
    """With shuffling, the ranks' chunks together are a permutation, padded with its beginning."""
    cases = [*draw_cases(rng), (200, 4)]
    seed = int(rng.integers(1000))

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=True, seed=seed)

    for (num_samples, _), shares in zip(cases, seen, strict=True):
        hold_shares(shares, num_samples, shuffle=True)
    order = [index for share in seen[-1] for index in share]
    check(
        order != sorted(order),
        "not-shuffled",
        f"200 samples come in the order 0, 1, 2 ... although `shuffle` is on (GUIDELINES, {GUIDE})",
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
        return shares_of(data_loader.PaddedDistributedSampler, 50, 3, seed=seed, epoch=2)

    seen = ranks(probe, 3, process_group=False, seed=int(rng.integers(1000)))

    differing = [rank for rank in range(3) if seen[rank] != seen[0]]
    check(
        not differing,
        "shuffle-differs-across-ranks",
        "the same seed and epoch gave another permutation in another process, so the ranks' "
        "shares overlap and leave samples out: something besides (seed, epoch) has a say, the "
        f"global random state perhaps (GUIDELINES, {GUIDE})",
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
    check(
        zero != one and one != two and zero != two,
        "epoch-ignored",
        "`set_epoch` changes nothing: epochs 0, 1 and 2 go through the samples in the same order "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        zero == again and fresh == zero,
        "epoch-ignored",
        "epoch 0 is not the same order each time (a new sampler is at epoch 0, too): the order "
        f"must depend on (seed, epoch) alone (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_seed_has_an_order_of_its_own(ranks, rng):
    """Another seed permutes otherwise."""

    def probe(data_loader, seeds):
        return [shares_of(data_loader.PaddedDistributedSampler, 60, 2, seed=s) for s in seeds]

    first = int(rng.integers(1000))
    [seen] = ranks(probe, 1, process_group=False, seeds=[first, first + 1, first + 7])

    check(
        seen[0] != seen[1] and seen[1] != seen[2] and seen[0] != seen[2],
        "seed-ignored",
        f"three different seeds gave the same permutation (GUIDELINES, {GUIDE})",
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
        list(sampler)
        return differing(before)

    [touched] = ranks(probe, 1, process_group=False)

    check(
        touched == [],
        "global-rng-touched",
        f"the global random state of {' and '.join(map(str, touched))} is another one after a "
        "pass: whatever the learner's model draws next (dropout, augmentation) would depend on "
        f"the sampler (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_bad_arguments_are_refused_by_name(ranks):
    """A world, rank or dataset that can't be is a ValueError that names the argument."""

    def probe(data_loader, cases):
        answers = []
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


def probe_loaders(data_loader, num_samples, batch_size, world_size, seed, **options):
    """Return [train, val] of every rank, each a list of batches of sample numbers."""
    train, val = (TensorDataset(torch.arange(count)) for count in num_samples)
    seen = []
    for rank in range(world_size):
        loaders = data_loader.create_dataloaders(
            train, val, batch_size, world_size=world_size, rank=rank, seed=seed, **options
        )
        seen.append([[batch[0].tolist() for batch in loader] for loader in loaders])
    return seen


def joined(batches):
    return [index for batch in batches for index in batch]


@exercise("phase1/create_dataloaders", points=2)
def test_one_rank_has_plain_loaders(ranks, rng):
    """Alone, train is shuffled, the same way for the same seed, and val is in order."""

    def probe(data_loader, seeds):
        made = [probe_loaders(data_loader, (90, 31), 8, 1, seed)[0] for seed in seeds]
        return [[joined(train), joined(val)] for train, val in made]

    seed = int(rng.integers(1000))
    [seen] = ranks(probe, 1, process_group=False, seeds=[seed, seed, seed + 1])

    (train, val), (again, _), (other, _) = seen
    check(
        sorted(train) == list(range(90)) and sorted(val) == list(range(31)),
        "samples-dropped",
        f"with one rank the loaders give {len(set(train))} of 90 train samples and "
        f"{len(set(val))} of 31 val samples: all are wanted, once each (GUIDELINES, {LOADERS})",
        guide=LOADERS,
    )
    check(
        train != sorted(train),
        "not-shuffled",
        f"with one rank the train loader is not shuffled (GUIDELINES, {LOADERS})",
        guide=LOADERS,
    )
    check(
        val == sorted(val),
        "val-shuffled",
        f"with one rank the val loader is shuffled: it goes in order (GUIDELINES, {LOADERS})",
        guide=LOADERS,
    )
    check(
        train == again and train != other,
        "seed-ignored",
        "with one rank the train order must be the same for the same seed and another one for "
        f"another seed (GUIDELINES, {LOADERS})",
        guide=LOADERS,
    )


@exercise("phase1/create_dataloaders", points=3)
def test_every_rank_loads_its_own_share(ranks, rng):
    """With N ranks, each loader goes over that rank's padded share: train shuffled, val not."""

    def probe(data_loader, seed):
        return probe_loaders(data_loader, (90, 31), 8, 4, seed)

    [seen] = ranks(probe, 1, process_group=False, seed=int(rng.integers(1000)))

    train, val = ([joined(rank[kind]) for rank in seen] for kind in (0, 1))
    for name, shares, count in (("train", train, 90), ("val", val, 31)):
        check(
            any(sorted(share) != sorted(shares[0]) for share in shares),
            "sampler-not-used",
            f"with 4 ranks the {name} loader gives every rank the same {len(set(shares[0]))} of "
            f"{count} samples: no sampler shares them out (GUIDELINES, {LOADERS})",
            ranks=range(4),
            guide=LOADERS,
        )
    hold_shares(train, 90, shuffle=True)
    check(
        joined(train) != sorted(joined(train)),
        "not-shuffled",
        f"with 4 ranks the train loader is not shuffled (GUIDELINES, {LOADERS})",
        guide=LOADERS,
    )
    check(
        diagnose_shares(val, 31, shuffle=True) is not None
        or diagnose_shares(val, 31, shuffle=False) is None,
        "val-shuffled",
        f"with 4 ranks the val loader is shuffled: it goes in order (GUIDELINES, {LOADERS})",
        guide=LOADERS,
    )
    hold_shares(val, 31, shuffle=False)


@exercise("phase1/create_dataloaders", points=2)
def test_the_batch_size_is_per_rank_and_nothing_is_dropped(ranks):
    """Every rank gets batches of `batch_size`, and what is left over as a smaller last one."""

    def probe(data_loader):
        sizes = []
        for world_size in (1, 3):
            seen = probe_loaders(data_loader, (50, 23), 4, world_size, 0)
            sizes.append([[[len(b) for b in batches] for batches in rank] for rank in seen])
        return sizes

    [seen] = ranks(probe, 1, process_group=False)

    for world_size, by_rank in zip((1, 3), seen, strict=True):
        for rank, loaders in enumerate(by_rank):
            for name, sizes, count in zip(("train", "val"), loaders, (50, 23), strict=True):
                share = -(-count // world_size)
                case = f"{count} samples on {world_size} ranks in batches of 4: the {name} loader"
                check(
                    max(sizes, default=0) == 4,
                    "batch-size-divided",
                    f"{case} of rank {rank} gives batches of {max(sizes, default=0)}: "
                    f"`batch_size` is that of one rank already (GUIDELINES, {LOADERS})",
                    ranks=[rank],
                    guide=LOADERS,
                )
                check(
                    sum(sizes) == share and set(sizes[:-1]) <= {4},
                    "samples-dropped",
                    f"{case} of rank {rank} gives {sum(sizes)} samples in batches of {sizes}: its "
                    f"share is {share} (GUIDELINES, {LOADERS})",
                    ranks=[rank],
                    guide=LOADERS,
                )
