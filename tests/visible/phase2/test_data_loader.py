"""Visible tests of template_data_loader.py: few samples, so that you can follow on paper."""

import random

import numpy as np
import torch

from gradsync.testing import check, exercise
from support.rules.strides import diagnose_strides

RESUMABLE, SHARDS = "Resumable shares", "Shares without padding"
MICROBATCHES = "Microbatches"


def assert_shares(shares, wanted, *, samples, **options):
    """Compare the ranks' indices, one list per rank, with the expected lists."""
    mistake = diagnose_strides(shares, range(samples), **options)
    after = f", resumed after {options['seen']}" if "seen" in options else ""
    cut = ", with drop_last" if "drop_last" in options else ""
    check(
        shares == wanted,
        mistake.code if mistake else "not-strided",
        f"{samples} samples on {len(wanted)} ranks, not shuffled{cut}{after}: your ranks get "
        f"{shares}, but should get {wanted}.",
        ranks=[rank for rank, share in enumerate(shares) if share != wanted[rank]],
        guide=RESUMABLE,
    )


def assert_lengths(lengths, wanted, case):
    check(
        lengths == wanted,
        "wrong-length",
        f"{case}: `len(sampler)` is {lengths} by rank, but should be {wanted}, the number of "
        "indices that the next pass yields.",
        guide=RESUMABLE,
    )


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_every_rank_takes_every_nth_sample(ranks):
    """6 samples on 2 ranks: rank 0 gets 0, 2 and 4, and rank 1 gets 1, 3 and 5."""

    def probe(rank, world_size, data_loader):
        sampler = data_loader.ResumableDistributedSampler(range(6), world_size, rank, shuffle=False)
        return [int(index) for index in sampler]

    seen = ranks(probe, world_size=2)

    assert_shares(list(seen), [[0, 2, 4], [1, 3, 5]], samples=6)


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_last_row_is_filled_or_cut(ranks):
    """5 samples on 3 ranks: sample 0 fills the second row; `drop_last` cuts that row instead."""

    def probe(rank, world_size, data_loader):
        made = [
            data_loader.ResumableDistributedSampler(
                range(5), world_size, rank, shuffle=False, drop_last=drop_last
            )
            for drop_last in (False, True)
        ]
        return [[[int(index) for index in sampler], len(sampler)] for sampler in made]

    seen = ranks(probe, world_size=3)

    filled, cut = ([passes[kind] for passes in seen] for kind in (0, 1))
    assert_shares([share for share, _ in filled], [[0, 3], [1, 4], [2, 0]], samples=5)
    assert_shares([share for share, _ in cut], [[0], [1], [2]], samples=5, drop_last=True)
    assert_lengths([length for _, length in filled], [2, 2, 2], "5 samples on 3 ranks")
    assert_lengths([length for _, length in cut], [1, 1, 1], "5 samples on 3 ranks, drop_last")


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_shuffled_epochs_are_the_same_on_all_ranks(ranks):
    """20 samples on 2 ranks, shuffled: each epoch uses every sample once, in a different order.

    With `drop_last`, one of 5 samples is left out, but not the same one in each of 30 epochs.
    """

    def probe(rank, world_size, data_loader):
        for set_seed in (random.seed, np.random.seed, torch.manual_seed):
            set_seed(rank)  # as in real training runs, the ranks' global random states differ
        sampler = data_loader.ResumableDistributedSampler(range(20), world_size, rank)
        epochs = []
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            epochs.append([int(index) for index in sampler])
        cut = data_loader.ResumableDistributedSampler(range(5), world_size, rank, drop_last=True)
        drawn = set()
        for epoch in range(30):
            cut.set_epoch(epoch)
            drawn |= {int(index) for index in cut}
        return [*epochs, sorted(drawn)]

    seen = ranks(probe, world_size=2)

    never = sorted(set(range(5)) - {*seen[0][2], *seen[1][2]})
    first, second = ([*seen[0][epoch], *seen[1][epoch]] for epoch in (0, 1))
    missing = sorted(set(range(20)) - set(first))
    for holds, code, text in (
        (
            not missing,
            "same-shard-on-every-rank" if seen[0] == seen[1] else "shuffle-differs-across-ranks",
            f"In epoch 0, the two ranks together leave out {missing} of 20 samples. Both must take "
            "their shares from the same permutation, although their global random states differ.",
        ),
        (
            seen[0][0] != sorted(seen[0][0]),
            "not-shuffled",
            "The samples come in order, although `shuffle` is True, which is the default.",
        ),
        (
            first != second,
            "epoch-ignored",
            "After set_epoch(1), the samples come in the order of epoch 0. Every epoch needs a "
            "different permutation.",
        ),
        (
            not never,
            "samples-missing",
            f"With 5 samples on 2 ranks and drop_last, {never} never come in 30 epochs. Shuffle "
            "all samples first, and then cut the end of that order.",
        ),
    ):
        check(holds, code, text, ranks=(0, 1), guide=RESUMABLE)


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_four_ranks_continue_where_two_stopped(ranks):
    """2 ranks used 4 of 10 samples: 4 ranks share the other 6, and the next epoch has all 10."""

    def probe(rank, world_size, data_loader):
        sampler = data_loader.ResumableDistributedSampler(
            range(10), world_size, rank, shuffle=False
        )
        sampler.resume(3, 4)
        sampler.set_epoch(3)
        length = len(sampler)
        left = [int(index) for index in sampler]
        sampler.set_epoch(4)
        return [length, left, [int(index) for index in sampler]]

    seen = ranks(probe, world_size=4)

    lengths, left, whole = ([values[part] for values in seen] for part in range(3))
    assert_shares(left, [[4, 8], [5, 9], [6, 4], [7, 5]], samples=10, seen=4)
    assert_lengths(lengths, [2, 2, 2, 2], "10 samples on 4 ranks, resumed after 4")
    assert_shares(whole, [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], samples=10)


@exercise("phase2/shard_without_padding", points=1)
def test_ten_samples_are_shared_by_four_ranks(ranks):
    """10 samples on 4 ranks: chunks of 3, 3, 2 and 2. 1 sample on 2 ranks: rank 1 gets none."""

    def probe(rank, data_loader):
        shares = [data_loader.shard_without_padding(10, 4, rank)]
        if rank < 2:
            shares.append(data_loader.shard_without_padding(1, 2, rank))
        return [[int(index) for index in share] for share in shares]

    seen = ranks(probe, world_size=4)

    for case, shares, wanted in (
        ("10 samples on 4 ranks", [s[0] for s in seen], [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        ("1 sample on 2 ranks", [s[1] for s in seen[:2]], [[0], []]),
    ):
        missing = {i for share in wanted for i in share} - {i for share in shares for i in share}
        check(
            shares == wanted,
            "samples-missing" if missing else "unequal-shards",
            f"{case}: your ranks get {shares}, but should get {wanted}.",
            guide=SHARDS,
        )


@exercise("phase2/split_microbatches", points=1)
def test_seven_samples_make_three_microbatches(ranks):
    """7 samples in 3 parts: 3, 2 and 2, as views of the batch. 8 parts raise a ValueError."""

    def probe(data_loader):
        inputs, targets = torch.arange(14).view(7, 2), torch.arange(7) * 10
        parts = data_loader.split_microbatches((inputs, targets), 3)
        values = [[tensor.tolist() for tensor in part] for part in parts]
        parts[-1][1].fill_(-1)
        try:
            data_loader.split_microbatches((inputs, targets), 8)
            refused = False
        except ValueError:
            refused = True
        return [values, targets.tolist()[5:], refused]

    [(parts, changed, refused)] = ranks(probe, world_size=1, process_group=False)

    targets = [part[1] for part in parts]
    inputs = [[row[0] * 5 for row in part[0]] for part in parts]  # (0, 1) belongs to 0
    for holds, code, text in (
        (
            targets == [[0, 10, 20], [30, 40], [50, 60]],
            "unequal-shards",
            f"in 3 parts, the targets are {targets}, but should be [[0, 10, 20], [30, 40], "
            "[50, 60]].",
        ),
        (
            inputs == targets,
            "microbatch-order",
            "in 3 parts, the inputs in a part do not belong to its targets. Split both at the same "
            "positions.",
        ),
        (
            changed == [-1, -1],
            "tensors-replaced",
            "in 3 parts, a change to a part does not change the batch. The parts must be views of "
            "the batch, not copies.",
        ),
        (refused, "bad-arguments-accepted", "8 parts must raise a ValueError."),
    ):
        check(holds, code, f"A batch of 7 samples: {text}", guide=MICROBATCHES)
