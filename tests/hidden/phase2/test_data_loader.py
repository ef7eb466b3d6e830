"""The strided sampler without resuming: the samples of each rank in a complete epoch."""

from gradsync.testing import check, exercise, raise_mistake
from gradsync.text import counted
from support.probes.sampling import (
    be_another_process,
    changed_since,
    indices_of,
    pass_watched,
    passes_of_epochs,
    random_states,
    refusals,
)
from support.rules.samplers import (
    BAD_ARGUMENTS,
    epoch_ignored,
    not_shuffled,
    other_seed_by_default,
    process_has_a_say,
    random_state_touched,
    refused_wrongly,
    seed_ignored,
)
from support.rules.shares import some
from support.rules.strides import GUIDE, diagnose_strides, rows_of


def probe_shares(data_loader, cases, epoch=0, **options):
    """Return the indices of every rank in every case, all computed in one process."""

    def share(m, n, r):
        sampler = data_loader.ResumableDistributedSampler(range(m), n, r, **options)
        if epoch:
            sampler.set_epoch(epoch)
        return indices_of(sampler)

    return [[share(m, n, r) for r in range(n)] for m, n in cases]


def draw_cases(rng, count=30):
    """Draw pairs (M, N): divisible or not, more ranks than samples, one sample, one rank."""
    drawn = [(int(rng.integers(1, 120)), int(rng.integers(1, 17))) for _ in range(count)]
    return [(10, 4), (8, 4), (1, 4), (3, 8), (7, 1), (1, 1), (2, 3), *drawn]


def check_order(order, samples):
    """Check that a single rank gets every sample once."""
    given = f"the rank gets {some(order)}" if order else "the rank gets no samples"
    check(
        sorted(order) == list(range(samples)),
        "samples-missing",
        f"{counted(samples, 'sample')} on a single rank: {given}. It must get every sample once.",
        guide=GUIDE,
    )


def check_shuffled(order, samples):
    """Check that a single rank gets every sample once, in a shuffled order."""
    check_order(order, samples)
    raise_mistake(not_shuffled(order, GUIDE) if samples >= 20 else None)


@exercise("phase2/ResumableDistributedSampler", points=2)
def test_every_rank_gets_every_nth_position_of_the_padded_order(ranks, rng):
    """Without shuffling, rank r gets positions r, r+N, r+2N, ... of the padded order 0..M-1."""
    cases = draw_cases(rng)

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=False)

    for (samples, _), shares in zip(cases, seen, strict=True):
        raise_mistake(diagnose_strides(shares, range(samples)))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_permutation_is_the_same_for_every_world_size(ranks, rng):
    """With shuffling, the ranks share one padded permutation, which is the same for every N."""
    sizes = [10, 1, 3, 200, 30, *(int(rng.integers(2, 90)) for _ in range(6))]
    cases = [(m, n) for m in sizes for n in (1, 2, 3, 4, 7, 16)]
    seed = int(rng.integers(1000))

    for epoch in (0, 3):
        given = {"cases": cases, "seed": seed, "epoch": epoch}
        [seen] = ranks(probe_shares, 1, process_group=False, **given)

        for (samples, world_size), shares in zip(cases, seen, strict=True):
            if world_size == 1:
                [order] = shares
                check_shuffled(order, samples)
            raise_mistake(diagnose_strides(shares, order))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_drop_last_cuts_what_does_not_fill_a_row(ranks, rng):
    """With `drop_last`, the order is cut to a multiple of N: no sample is repeated."""

    def probe(data_loader, cases, seed):
        alone = [(m, 1) for m, _ in cases]
        return [
            [
                probe_shares(data_loader, alone, shuffle=shuffle, seed=seed),
                probe_shares(data_loader, cases, shuffle=shuffle, seed=seed, drop_last=True),
            ]
            for shuffle in (False, True)
        ]

    cases = draw_cases(rng)
    [seen] = ranks(probe, 1, process_group=False, cases=cases, seed=int(rng.integers(1000)))

    in_order, shuffled = seen
    for orders, every_share in (in_order, shuffled):
        for (samples, _), [order], shares in zip(cases, orders, every_share, strict=True):
            check_order(order, samples)
            raise_mistake(diagnose_strides(shares, order, drop_last=True))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_the_length_is_what_a_whole_epoch_yields(ranks, rng):
    """`len(sampler)` is the number of indices that each rank gets, even with `drop_last`."""

    def probe(data_loader, cases):
        sampler_class = data_loader.ResumableDistributedSampler
        return [
            [len(sampler_class(range(m), n, r, drop_last=drop)) for r in range(n)]
            for m, n, drop in cases
        ]

    cases = [(m, n, drop) for m, n in draw_cases(rng) for drop in (False, True)]
    [seen] = ranks(probe, 1, process_group=False, cases=cases)

    for (m, n, drop), lengths in zip(cases, seen, strict=True):
        rows = rows_of(m, n, drop)
        check(
            lengths == [rows] * n,
            "wrong-length",
            f"{m} samples on {n} ranks, drop_last={drop}: `len(sampler)` is {lengths} by rank. It "
            f"must be the number of indices that each rank gets, here {rows}.",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_every_process_computes_the_same_order(ranks, rng):
    """The permutation depends only on the seed and the epoch, not on the global random state."""

    def probe(rank, data_loader, seed):
        be_another_process(rank)
        return probe_shares(data_loader, [(50, 3), (50, 1)], seed=seed)

    seen = ranks(probe, 2, process_group=False, seed=int(rng.integers(1000)))

    [order] = seen[0][1]
    check_order(order, 50)
    raise_mistake(process_has_a_say(seen, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_every_epoch_has_its_own_order(ranks, rng):
    """Each epoch has a different order, which can be repeated; a new sampler is at epoch 0."""

    def probe(data_loader, seed):
        sampler_class = data_loader.ResumableDistributedSampler
        return passes_of_epochs(lambda: sampler_class(range(60), 2, 1, seed=seed))

    [seen] = ranks(probe, 1, process_group=False, seed=int(rng.integers(1000)))

    raise_mistake(epoch_ignored(seen, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_every_seed_has_its_own_order(ranks, rng):
    """Each seed gives a different order, in every epoch, and the default seed is 0."""

    def probe(data_loader, seeds):
        samplers = [
            data_loader.ResumableDistributedSampler(range(60), 1, 0, seed=seed) for seed in seeds
        ]
        by_default = indices_of(data_loader.ResumableDistributedSampler(range(60), 1, 0))
        first = [indices_of(sampler) for sampler in samplers]
        for sampler in samplers:
            sampler.set_epoch(3)
        return [by_default, first, [indices_of(sampler) for sampler in samplers]]

    start = int(rng.integers(1, 1000))
    [seen] = ranks(probe, 1, process_group=False, seeds=[0, start, start + 1, start + 7])

    by_default, *by_epoch = seen
    for epoch, orders in zip((0, 3), by_epoch, strict=True):
        raise_mistake(seed_ignored(orders, epoch, GUIDE))
    raise_mistake(other_seed_by_default(by_default, by_epoch[0][0], GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_no_global_random_state_is_changed(ranks):
    """Creating, resuming and iterating over a sampler does not change the global random state."""

    def probe(data_loader):
        before = random_states()
        sampler = data_loader.ResumableDistributedSampler(range(50), 1, 0)
        sampler.set_epoch(3)
        order, during, _ = pass_watched(sampler, before)
        sampler.resume(4, 11)
        list(sampler)
        return [order, during, changed_since(before)]

    [[order, during, touched]] = ranks(probe, 1, process_group=False)

    check_shuffled(order, 50)
    raise_mistake(random_state_touched(during, touched, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_impossible_arguments_are_refused_by_name(ranks):
    """Impossible arguments raise a ValueError that names the argument."""

    def probe(data_loader):
        return refusals(data_loader.ResumableDistributedSampler, BAD_ARGUMENTS)

    [seen] = ranks(probe, 1, process_group=False)

    raise_mistake(refused_wrongly("ResumableDistributedSampler", seen, GUIDE))
