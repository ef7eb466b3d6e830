"""What the two data loaders promise, by the samples of every batch.

`counts` are the numbers of train and val samples.
"""

import os
from contextlib import ExitStack
from unittest.mock import patch

import torch
from torch.utils.data import DistributedSampler, TensorDataset

from gradsync.testing import check, raise_mistake
from gradsync.text import ranks_text
from support.probes.returned import WrongReturn, described, loaders_of
from support.rules.loaders import (
    GUIDE,
    everything_loaded,
    index_past_the_end,
    other_dataset,
    sampler_refused,
    share_of_other_dataset,
    shares_depend_on_environment,
)
from support.rules.shares import diagnose_shares, some

FIRST_VAL = 1000  # the first val sample; the first train sample is 0
MISTAKES = [index_past_the_end, sampler_refused]
ANOTHER_RANK = {"RANK": "2", "WORLD_SIZE": "7"}


def probe_loaders(data_loader, num_samples, batch_size, world_size, seed, drawn=0):
    """Return [train, val] of every rank, each a list of batches of sample numbers.

    Before a pass, `drawn` random numbers are drawn, as the code of a model may do.
    """
    train, val = (
        TensorDataset(torch.arange(first, first + count))
        for first, count in zip((0, FIRST_VAL), num_samples, strict=True)
    )
    seen = []
    for rank in range(world_size):
        made = data_loader.create_dataloaders(
            train, val, batch_size, world_size=world_size, rank=rank, seed=seed
        )
        loaders = loaders_of(made)
        torch.rand(drawn)
        seen.append([[samples_in(batch) for batch in loader] for loader in loaders])
    return seen


def samples_in(batch):
    """Return the sample numbers of a batch from a TensorDataset with one tensor."""
    if isinstance(batch, (tuple, list)) and len(batch) == 1 and isinstance(batch[0], torch.Tensor):
        return batch[0].flatten().tolist()
    raise WrongReturn(
        f"a loader of create_dataloaders yields {described(batch)}. It must be a DataLoader that "
        "yields batches of its dataset's samples."
    )


def probe_settings(data_loader, world_size):
    """Return the loaders' `num_workers` and `pin_memory`: the defaults, and if they are set."""

    def make(**settings):
        return data_loader.create_dataloaders(
            range(9), range(9), 4, world_size=world_size, rank=0, **settings
        )

    def pinning(**settings):
        return [bool(loader.pin_memory) for loader in make(**settings)]

    pinned = pinning(pin_memory=True)
    if not all(pinned):  # code that pins only if there is a GPU is also correct
        with ExitStack() as there_is_one:
            for library in (torch.cuda, getattr(torch, "accelerator", torch.cuda)):
                there_is_one.enter_context(patch.object(library, "is_available", lambda: True))
            pinned = pinning(pin_memory=True)
    workers = [[loader.num_workers for loader in make(**s)] for s in ({}, {"num_workers": 1})]
    return {"num_workers": workers, "pin_memory": [pinning(), pinned]}


def joined(batches):
    return [index for batch in batches for index in batch]


def check_own(by_rank):
    """Check that each loader yields samples of its own dataset; return the shares of both."""
    shares = [[joined(rank[kind]) for rank in by_rank] for kind in (0, 1)]
    raise_mistake(other_dataset(*shares, FIRST_VAL))
    train, val = shares
    return train, [[sample - FIRST_VAL for sample in share] for share in val]


def plain_on_one_rank(ranks, counts, batch_size, seed):
    """Check that train is shuffled in an order that depends on the seed, and val is in order."""

    def probe(data_loader, counts, batch_size, seeds):
        made = [
            probe_loaders(data_loader, counts, batch_size, 1, seed, drawn=number)
            for number, seed in enumerate(seeds)
        ]
        sets = map(range, counts)
        by_default, _ = loaders_of(data_loader.create_dataloaders(*sets, batch_size))
        return [[int(sample) for batch in by_default for sample in batch], *made]

    inputs = {"counts": counts, "batch_size": batch_size, "seeds": [seed, seed, seed + 1, 0]}
    [seen] = ranks(probe, 1, process_group=False, **inputs)

    by_default, *made = seen
    ([train], [val]), ([again], _), ([other], _), ([zero], _) = map(check_own, made)
    check(
        [sorted(train), sorted(val)] == [list(range(count)) for count in counts],
        "samples-dropped",
        f"With one rank, the loaders yield {len(set(train))} of {counts[0]} train samples and "
        f"{len(set(val))} of {counts[1]} val samples. They must yield each sample once.",
        guide=GUIDE,
    )
    check(
        train != sorted(train),
        "not-shuffled",
        "With one rank, the train loader is not shuffled. Shuffle it.",
        guide=GUIDE,
    )
    check(
        val == sorted(val),
        "val-shuffled",
        "With one rank, the val loader is shuffled. It must yield the samples in order.",
        guide=GUIDE,
    )
    check_seeded(train, again, other, "With one rank", "Shuffle with a generator seeded by `seed`.")
    check(
        by_default == zero,
        "seed-ignored",
        "Called with only two datasets and a batch size, create_dataloaders does not yield the "
        "train order of one rank with seed 0. The defaults are one rank and seed 0.",
        guide=GUIDE,
    )


def settings_used(ranks):
    """Check that `num_workers` and `pin_memory` are passed on, and that no worker starts early."""

    def probe(data_loader):
        return [probe_settings(data_loader, world_size) for world_size in (1, 3)]

    [settings] = ranks(probe, 1, process_group=False)

    check_settings(settings)


def batches_of_each_rank(ranks, counts, batch_size, world_sizes):
    """Check that each rank gets batches of `batch_size`, and no sample is dropped."""

    def probe(data_loader, counts, batch_size, world_sizes):
        return [probe_loaders(data_loader, counts, batch_size, size, 0) for size in world_sizes]

    inputs = {"counts": counts, "batch_size": batch_size, "world_sizes": world_sizes}
    [seen] = ranks(probe, 1, process_group=False, mistakes=MISTAKES, **inputs)

    def again():
        return ranks(probe, 1, **inputs)

    for world_size, by_rank in zip(world_sizes, seen, strict=True):
        check_own(by_rank)
        for rank, loaders in enumerate(by_rank):
            for name, batches, count in zip(("train", "val"), loaders, counts, strict=True):
                sizes = [len(batch) for batch in batches]
                both = (count, sum(counts) - count)
                share, other = (-(-samples // world_size) for samples in both)
                case = f"{count} samples, world size {world_size}, batches of {batch_size}: the "
                case += f"{name} loader"
                if world_size > 1 and sum(sizes) >= count:
                    case = f"{case} of rank {rank} yields all {count} samples"
                    raise_mistake(everything_loaded(case, [rank], seen, again))
                check(
                    max(sizes, default=0) == batch_size,
                    "batch-size-divided",
                    f"{case} of rank {rank} yields batches of {max(sizes, default=0)} samples. "
                    "`batch_size` is the batch size of each rank: do not divide it.",
                    ranks=[rank],
                    guide=GUIDE,
                )
                raise_mistake(
                    share_of_other_dataset(f"{case} of rank {rank}", sum(sizes), share, other, rank)
                )
                check(
                    sum(sizes) == share and set(sizes[:-1]) <= {batch_size},
                    "samples-dropped",
                    f"{case} of rank {rank} yields {sum(sizes)} samples, in batches of {sizes}. "
                    f"Its share has {share}: keep the smaller last batch too.",
                    ranks=[rank],
                    guide=GUIDE,
                )


def check_settings(settings):
    """Check the settings of both loaders, with 1 rank and with 3: the defaults and the given."""
    for world_size, by_name in zip((1, 3), settings, strict=True):
        for setting, (by_default, asked) in by_name.items():
            for name, without, given in zip(("train", "val"), by_default, asked, strict=True):
                case = f"World size {world_size}: the {name} loader has {setting}"
                check(
                    given == 1,
                    "setting-ignored",
                    f"{case}={given}, but `create_dataloaders` was called with {setting}="
                    f"{type(given)(1)}. Pass it on.",
                    guide=GUIDE,
                )
                check(
                    without == 0,
                    "setting-ignored",
                    f"{case}={without}, but `create_dataloaders` was called without it. The "
                    f"default is {type(without)(0)}.",
                    guide=GUIDE,
                )


def own_share_on_every_rank(ranks, counts, world_size, seed):
    """Check that each loader yields the rank's padded share: train shuffled, val in order."""

    def probe(data_loader, counts, size, seeds):
        made = [probe_loaders(data_loader, counts, 4, size, seed) for seed in seeds]
        os.environ.update(ANOTHER_RANK)
        made.append(probe_loaders(data_loader, counts, 4, size, seeds[0]))
        loaders = data_loader.create_dataloaders(*map(range, counts), 4, world_size=size, rank=0)
        return [*made, [type(loader.sampler) is DistributedSampler for loader in loaders]]

    inputs = {"counts": counts, "size": world_size, "seeds": [seed, seed, seed + 1]}
    [seen] = ranks(probe, 1, process_group=False, mistakes=MISTAKES, **inputs)

    *made, shortcuts = seen
    (train, val), (again, _), (other, _), under = map(check_own, made)
    case = f"With {world_size} ranks"
    for name, shares, count in (("train", train, counts[0]), ("val", val, counts[1])):
        whole = [rank for rank, share in enumerate(shares) if set(share) == set(range(count))]
        if whole:
            text = f"{case}, the {name} loader of {ranks_text(whole)} yields all {count} samples"
            raise_mistake(everything_loaded(text, whole, seen, lambda: ranks(probe, 1, **inputs)))
    check(
        not any(shortcuts),
        "forbidden-shortcut",
        f"{case}, a loader uses torch's own DistributedSampler. Use your PaddedDistributedSampler.",
        guide=GUIDE,
    )
    raise_mistake(diagnose_shares(train, counts[0], shuffle=True))
    check(
        diagnose_shares(train, counts[0], shuffle=False) is not None,
        "not-shuffled",
        f"{case}, the train loader goes through the samples in order: rank 0 gets "
        f"{some(train[0])}. Shuffle the training data.",
        guide=GUIDE,
    )
    check_seeded(train, again, other, case, "Pass the seed to the sampler.")
    said = " and ".join(f"{name}={value}" for name, value in ANOTHER_RANK.items())
    raise_mistake(shares_depend_on_environment((train, val), under, said))
    check_in_order(case, val, counts[1])


def check_seeded(train, again, other, case, advice):
    """Check that the train order is the same for the same seed, and not for a different one."""
    found = (
        "two loaders with the same seed yield different orders"
        if train != again
        else "two loaders with different seeds yield the same order"
    )
    right = train == again and train != other
    check(right, "seed-ignored", f"{case}, {found}. {advice}", guide=GUIDE)


def check_in_order(case, val, count):
    """Check that the ranks' shares of the val set are in order."""
    in_order = diagnose_shares(val, count, shuffle=False)
    check(
        in_order is None or diagnose_shares(val, count, shuffle=True) is not None,
        "val-shuffled",
        f"{case}, the val loader is shuffled: rank 0 gets {some(val[0])}. It must yield the "
        "samples in order.",
        guide=GUIDE,
    )
    raise_mistake(in_order)
