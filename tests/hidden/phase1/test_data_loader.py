"""The sampler. A share is the list of a rank's indices."""

from operator import itemgetter

from torch.utils.data import DistributedSampler, Sampler

from gradsync.testing import check, each, exercise, raise_mistake
from support.probes.sampling import (
    be_another_process,
    indices_of,
    length_of,
    pass_watched,
    passes_of_epochs,
    random_states,
    refusals,
)
from support.probes.scripts import run_with_samplers
from support.rules.samplers import (
    BAD_ARGUMENTS,
    epoch_ignored,
    few_samples,
    not_shuffled,
    order_depends_on_world_size,
    other_seed_by_default,
    process_has_a_say,
    random_state_touched,
    refused_wrongly,
    seed_ignored,
)
from support.rules.scripts import prints_no_shares, prints_no_verdict, raises
from support.rules.shares import GUIDE, diagnose_shares


def shares_of(sampler_class, num_samples, world_size, *, epoch=None, **options):
    """Return the indices of every rank, all computed in one process."""
    shares = []
    for rank in range(world_size):
        sampler = sampler_class(range(num_samples), world_size, rank, **options)
        if epoch is not None:
            sampler.set_epoch(epoch)
        shares.append(indices_of(sampler))
    return shares


def probe_shares(data_loader, cases, shuffle, seed=0):
    """Return the shares of every case, and whether torch's own sampler computes them."""
    sampler_class = data_loader.PaddedDistributedSampler
    shares = [shares_of(sampler_class, m, n, shuffle=shuffle, seed=seed) for m, n in cases]
    return [shares, issubclass(sampler_class, DistributedSampler)]


def draw_cases(rng, count=40):
    """Draw pairs (M, N): divisible or not, more ranks than samples, one sample, one rank.

    In the last pair, a rank's share is larger than Python's recursion limit.
    """
    drawn = [(int(rng.integers(1, 120)), int(rng.integers(1, 17))) for _ in range(count)]
    return [(10, 4), (8, 4), (1, 4), (3, 8), (7, 1), (1, 1), (2, 3), *drawn, (4001, 3)]


def joined(shares):
    return [index for share in shares for index in share]


def check_some(indices):
    """Check that a pass is not empty: the other checks accept an empty order."""
    check(
        len(indices) > 0,
        "samples-missing",
        "A pass over a sampler of many samples yields no indices.",
        guide=GUIDE,
    )


def check_shuffled(order):
    check_some(order)
    raise_mistake(few_samples(order, GUIDE))
    raise_mistake(not_shuffled(order, GUIDE))


@exercise("phase1/PaddedDistributedSampler", points=4)
def test_every_rank_gets_its_chunk_of_the_padded_order(ranks, rng):
    """Without shuffling, rank r gets the r-th contiguous chunk of the padded order 0..M-1."""
    cases = draw_cases(rng)

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=False)

    every_share, shortcut = seen
    for (num_samples, _), shares in zip(cases, every_share, strict=True):
        raise_mistake(diagnose_shares(shares, num_samples, False, shortcut))


@exercise("phase1/PaddedDistributedSampler", points=3)
def test_shuffled_shares_are_chunks_of_one_padded_permutation(ranks, rng):
    """With shuffling, the ranks' chunks together are a permutation padded with its beginning."""
    cases = [(200, 4), *draw_cases(rng)]  # the first is too large for a coincidence
    seed = int(rng.integers(1000))

    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=True, seed=seed)

    every_share, shortcut = seen
    for (num_samples, _), shares in zip(cases, every_share, strict=True):
        raise_mistake(diagnose_shares(shares, num_samples, True, shortcut))
    check_shuffled(joined(every_share[0]))
    check(
        any(max(share) - min(share) >= 50 for share in every_share[0]),
        "shuffle-differs-across-ranks",
        "200 samples on 4 ranks: each rank gets 50 consecutive indices in shuffled order, so each "
        "share is shuffled separately. Draw the permutation of all samples first, and then cut it "
        "into shares.",
        ranks=range(4),
        guide=GUIDE,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_length_is_the_number_of_indices(ranks, rng):
    """`len(sampler)` is ceil(M/N) on every rank, and the class inherits from torch's Sampler."""

    def probe(data_loader, cases):
        sampler_class = data_loader.PaddedDistributedSampler
        lengths = [
            [length_of(sampler_class(range(m), n, rank)) for rank in range(n)] for m, n in cases
        ]
        return [lengths, isinstance(sampler_class(range(10), 2, 0), Sampler)]

    cases = draw_cases(rng)
    [[seen, is_sampler]] = ranks(probe, 1, process_group=False, cases=cases)

    check(
        is_sampler,
        "wrong-signature",
        "PaddedDistributedSampler must inherit from `torch.utils.data.Sampler`, but does not.",
        guide=GUIDE,
    )
    for (m, n), lengths in zip(cases, seen, strict=True):
        check(
            lengths == [-(-m // n)] * n,
            "wrong-length",
            f"{m} samples on {n} ranks: the ranks' values of `len(sampler)` are {lengths}. Every "
            f"rank gets ceil({m}/{n}) indices.",
            guide=GUIDE,
        )


@exercise("phase1/PaddedDistributedSampler", points=2)
def test_every_process_has_the_same_permutation(ranks, rng):
    """The permutation depends only on (seed, epoch), not on the process or its random state."""

    def probe(rank, data_loader, seed):
        kept = be_another_process(rank)
        sampler_class = data_loader.PaddedDistributedSampler
        shares = [shares_of(sampler_class, 50, n, seed=seed, epoch=2) for n in (3, 2, 7)]
        del kept
        return shares

    seen = ranks(probe, 3, process_group=False, seed=int(rng.integers(1000)))

    by_world_size = [each(seen, itemgetter(number)) for number in range(3)]
    check_shuffled(joined(by_world_size[0][0]))
    raise_mistake(process_has_a_say(by_world_size[0], GUIDE))
    if not any(diagnose_shares(shares[0], 50, shuffle=True) for shares in by_world_size):
        orders = {len(shares[0]): joined(shares[0])[:50] for shares in by_world_size}
        raise_mistake(order_depends_on_world_size(orders, GUIDE))


@exercise("phase1/PaddedDistributedSampler", points=1.5)
def test_every_epoch_has_its_own_order(ranks, rng):
    """Each epoch has its own permutation, the same every time; a new sampler is at epoch 0."""

    def probe(data_loader, seed):
        sampler_class = data_loader.PaddedDistributedSampler
        return passes_of_epochs(lambda: sampler_class(range(60), 2, 1, seed=seed))

    [seen] = ranks(probe, 1, process_group=False, seed=int(rng.integers(1000)))

    check_shuffled(seen[1])
    raise_mistake(epoch_ignored(seen, GUIDE))


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_seed_has_its_own_order(ranks, rng):
    """Each seed has its own permutation, and the default seed is 0."""

    def probe(data_loader, seeds):
        sampler_class = data_loader.PaddedDistributedSampler
        by_default = shares_of(sampler_class, 60, 2)
        return [by_default, *(shares_of(sampler_class, 60, 2, seed=s) for s in seeds)]

    first = int(rng.integers(1, 1000))
    [seen] = ranks(probe, 1, process_group=False, seeds=[0, first, first + 1, first + 7])

    by_default, *orders = seen
    check_shuffled(joined(orders[0]))
    raise_mistake(seed_ignored(orders, 0, GUIDE))
    raise_mistake(other_seed_by_default(by_default, orders[0], GUIDE))


@exercise("phase1/PaddedDistributedSampler", points=1.5)
def test_the_global_random_state_is_not_changed(ranks):
    """A pass over the sampler does not change any global random state."""

    def probe(data_loader):
        before = random_states()
        sampler = data_loader.PaddedDistributedSampler(range(50), 2, 0)
        sampler.set_epoch(3)
        return pass_watched(sampler, before)

    [[order, during, touched]] = ranks(probe, 1, process_group=False)

    check_shuffled(order)
    raise_mistake(random_state_touched(during, touched, GUIDE))


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_file_prints_the_shares_of_ten_samples(ranks):
    """Run as a program, the file prints four ranks' shares and whether they are right."""

    def probe(data_loader):
        return run_with_samplers(data_loader.__file__, data_loader.PaddedDistributedSampler)

    [runs] = ranks(probe, 1, process_group=False)

    raise_mistake(raises(runs))
    raise_mistake(prints_no_shares(runs))
    raise_mistake(prints_no_verdict(runs))


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_bad_arguments_raise_an_error_with_the_name(ranks):
    """An invalid world size, rank or dataset raises a ValueError that names it."""

    def probe(data_loader):
        return refusals(data_loader.PaddedDistributedSampler, BAD_ARGUMENTS)

    [seen] = ranks(probe, 1, process_group=False)

    raise_mistake(refused_wrongly("PaddedDistributedSampler", seen, GUIDE))
