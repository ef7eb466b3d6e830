"""The visible tests of the data loader, for `gradsync check`: small cases to follow on paper."""

import random

import numpy as np
import torch
from torch.utils.data import DistributedSampler, TensorDataset

from gradsync.testing import check, exercise
from support.probes.returned import loaders_of
from support.rules.shares import diagnose_shares

SHARES, LOADERS = "Data distribution", "Data loaders"


def assert_shares(shares, wanted):
    """Compare the ranks' indices, a list for each rank, with the expected lists."""
    num_samples = len({index for share in wanted for index in share})
    mistake = diagnose_shares(shares, num_samples, shuffle=False)
    check(
        shares == wanted,
        mistake.code if mistake else "padding-wrong",
        f"{num_samples} samples on {len(wanted)} ranks, not shuffled: the ranks get {shares}, but "
        f"should get {wanted}.",
        ranks=[rank for rank, share in enumerate(shares) if share != wanted[rank]],
        guide=SHARES,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_rank_gets_a_contiguous_chunk(ranks):
    """6 samples on 2 ranks: rank 0 gets the first three, rank 1 gets the other three."""

    def probe(rank, world_size, data_loader):
        sampler = data_loader.PaddedDistributedSampler(range(6), world_size, rank, shuffle=False)
        return [int(index) for index in sampler]

    seen = ranks(probe, world_size=2)

    assert_shares(list(seen), [[0, 1, 2], [3, 4, 5]])


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_last_chunk_is_padded_with_the_beginning(ranks):
    """5 samples on 3 ranks: each rank gets 2, so sample 0 is repeated at the end."""

    def probe(rank, world_size, data_loader):
        sampler = data_loader.PaddedDistributedSampler(range(5), world_size, rank, shuffle=False)
        return [[int(index) for index in sampler], len(sampler)]

    seen = ranks(probe, world_size=3)

    assert_shares([share for share, _ in seen], [[0, 1], [2, 3], [4, 0]])
    lengths = [length for _, length in seen]
    check(
        lengths == [2, 2, 2],
        "wrong-length",
        f"5 samples on 3 ranks: the ranks' values of `len(sampler)` are {lengths}. Every rank gets "
        "2 indices.",
        guide=SHARES,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_two_samples_are_enough_for_five_ranks(ranks):
    """2 samples on 5 ranks: each rank gets 1, so the samples are repeated more than once."""

    def probe(rank, world_size, data_loader):
        sampler = data_loader.PaddedDistributedSampler(range(2), world_size, rank, shuffle=False)
        return [int(index) for index in sampler]

    seen = ranks(probe, world_size=5, process_group=False)

    assert_shares(list(seen), [[0], [1], [0], [1], [0]])


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_all_ranks_use_the_same_order_in_each_epoch(ranks):
    """20 samples on 2 ranks, shuffled: each comes once an epoch, in a new order each epoch."""

    def probe(rank, world_size, data_loader):
        for set_seed in (random.seed, np.random.seed, torch.manual_seed):
            set_seed(rank)  # as in a real run: each rank has its own global random state
        sampler = data_loader.PaddedDistributedSampler(range(20), world_size, rank)
        epochs = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            epochs.append([int(index) for index in sampler])
        return [*epochs, [int(index) for index in sampler]]

    seen = ranks(probe, world_size=2)

    first, second, again, repeated = ([*mine, *other] for mine, other in zip(*seen, strict=True))
    missing = sorted(set(range(20)) - set(first))
    check(
        not missing,
        "same-shard-on-every-rank" if seen[0] == seen[1] else "shuffle-differs-across-ranks",
        f"In epoch 0, the two ranks together leave out {missing} of 20 samples and repeat others. "
        "Both must cut their shares from the same permutation. Use a generator that depends only "
        "on the seed and the epoch, not on the rank.",
        ranks=(0, 1),
        guide=SHARES,
    )
    check(
        first != list(range(20)),
        "not-shuffled",
        "`shuffle` is on by default, but the 20 samples come in the order 0, 1, 2, ...",
        guide=SHARES,
    )
    check(
        first != second,
        "epoch-ignored",
        "After set_epoch(1), the samples come in the order of epoch 0. Each epoch must have its "
        "own permutation.",
        guide=SHARES,
    )

    check(
        first == again == repeated,
        "epoch-ignored",
        "After set_epoch(0), the samples must come in the order of epoch 0 in every pass, even in "
        "a second pass, and after other epochs. Here the order changes. The order must depend on "
        "the epoch that was set last, not on the number of passes.",
        guide=SHARES,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_order_is_the_same_on_any_number_of_ranks(ranks):
    """12 samples, shuffled: the shares of 2 ranks and of 3 ranks are cut from the same order."""

    def probe(data_loader):
        orders = []
        for world_size in (2, 3):
            samplers = [
                data_loader.PaddedDistributedSampler(range(12), world_size, rank)
                for rank in range(world_size)
            ]
            orders.append([int(index) for sampler in samplers for index in sampler])
        return orders

    [[two, three]] = ranks(probe, world_size=1, process_group=False)

    check(
        two == three,
        "shuffle-differs-across-ranks",
        f"With the same seed and epoch, the order of 12 samples is {two} on 2 ranks and {three} on "
        "3 ranks. The permutation must depend only on the seed and the epoch, not on the number of "
        "ranks.",
        guide=SHARES,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_next_random_numbers_stay_the_same(ranks):
    """A pass over the sampler does not use or seed a global random generator."""

    def probe(data_loader):
        def draw():
            return [random.random(), float(np.random.rand()), torch.rand(1).item()]

        def seed_all():
            for set_seed in (random.seed, np.random.seed, torch.manual_seed):
                set_seed(7)

        seed_all()
        without = draw()
        seed_all()
        indices = list(data_loader.PaddedDistributedSampler(range(12), 2, 0))
        return [len(indices), without, draw()]

    [[count, without, after]] = ranks(probe, world_size=1, process_group=False)

    libraries = ("random", "numpy.random", "torch")
    pairs = zip(libraries, without, after, strict=True)
    changed = [library for library, *numbers in pairs if numbers[0] != numbers[1]]
    check(
        count == 6,
        "wrong-length",
        f"12 samples on 2 ranks: a pass over rank 0's sampler yields {count} indices, not 6.",
        guide=SHARES,
    )
    check(
        not changed,
        "global-rng-touched",
        f"A pass over the sampler changes the global random state of {', '.join(changed)}. "
        "Use a separate generator for the permutation.",
        guide=SHARES,
    )


def numbered_samples(count):
    """Return a dataset in which each sample is its own number."""
    return TensorDataset(torch.arange(count))


def batches_of(loader):
    return [numbers.tolist() for [numbers] in loader]


def joined(batches):
    return [number for batch in batches for number in batch]


@exercise("phase1/create_dataloaders", points=1)
def test_one_rank_loads_everything(ranks):
    """A single rank loads all training samples shuffled, and all validation samples in order."""

    def probe(data_loader):
        train, val = numbered_samples(12), numbered_samples(4)
        loaders = loaders_of(data_loader.create_dataloaders(train, val, batch_size=5))
        return [batches_of(loader) for loader in loaders]

    [(train, val)] = ranks(probe, world_size=1, process_group=False)

    sizes = [len(batch) for batch in train]
    order = joined(train)
    check(
        sizes == [5, 5, 2] and sorted(order) == list(range(12)),
        "samples-dropped",
        f"12 training samples on one rank, in batches of 5: the batches are {train}. They should "
        "have 5, 5 and 2 samples, and contain each sample once.",
        guide=LOADERS,
    )
    check(
        order != sorted(order),
        "not-shuffled",
        "On one rank, the training samples come in the order 0, 1, 2, ... Shuffle them.",
        guide=LOADERS,
    )
    check(
        val == [[0, 1, 2, 3]],
        "val-shuffled" if sorted(joined(val)) == [0, 1, 2, 3] else "samples-dropped",
        f"4 validation samples on one rank: the batches are {val}, but should be [[0, 1, 2, 3]], "
        "all samples in order.",
        guide=LOADERS,
    )


@exercise("phase1/create_dataloaders", points=1)
def test_two_ranks_load_half_each(ranks):
    """On 2 ranks, each rank loads its half, in batches of the given size."""

    def probe(rank, world_size, data_loader):
        train, val = numbered_samples(12), numbered_samples(8)
        made = data_loader.create_dataloaders(
            train, val, batch_size=4, world_size=world_size, rank=rank
        )
        train_loader, val_loader = loaders_of(made)
        samplers = [type(loader.sampler) for loader in (train_loader, val_loader)]
        return [batches_of(train_loader), batches_of(val_loader), DistributedSampler in samplers]

    seen = ranks(probe, world_size=2, process_group=False)

    check(
        not any(shortcut for _, _, shortcut in seen),
        "forbidden-shortcut",
        "A loader uses torch's own DistributedSampler. Use your PaddedDistributedSampler.",
        guide=LOADERS,
    )
    drawn = [sorted(joined(train)) for train, _, _ in seen]  # (rank, sample)
    check(
        sorted(drawn[0] + drawn[1]) == list(range(12)),
        "sampler-not-used" if drawn[0] == drawn[1] else "samples-dropped",
        f"12 training samples on 2 ranks: rank 0 loads {drawn[0]} and rank 1 {drawn[1]} (sorted "
        "here). Each rank should load 6, and each sample should be on one rank.",
        guide=LOADERS,
    )
    sizes = [[len(batch) for batch in train] for train, _, _ in seen]
    check(
        sizes == [[4, 2], [4, 2]],
        "batch-size-divided",
        f"2 ranks with 6 samples each and a batch_size of 4: the sizes of the ranks' batches are "
        f"{sizes}. Each rank should have batches of 4 and 2. `batch_size` is the batch size of "
        "each rank: do not divide it.",
        guide=LOADERS,
    )
    val = [val for _, val, _ in seen]  # (rank, batch, sample)
    is_shuffled = diagnose_shares([joined(batches) for batches in val], 8, shuffle=True) is None
    check(
        val == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]],
        "val-shuffled" if is_shuffled else "sampler-not-used",
        f"8 validation samples on 2 ranks: rank 0 loads {val[0]} and rank 1 {val[1]}. They should "
        "load [[0, 1, 2, 3]] and [[4, 5, 6, 7]], in order.",
        guide=LOADERS,
    )
