"""What a sampler of padded shares promises. A share is the list of a rank's indices."""

from operator import itemgetter

from torch.utils.data import DistributedSampler, Sampler

from gradsync.testing import check, each, raise_mistake
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


def chunks_of_the_padded_order(ranks, cases):
    """Check that, without shuffling, rank r gets the r-th chunk of the padded order 0..M-1."""
    [seen] = ranks(probe_shares, 1, process_group=False, cases=cases, shuffle=False)

    every_share, shortcut = seen
    for (num_samples, _), shares in zip(cases, every_share, strict=True):
        raise_mistake(diagnose_shares(shares, num_samples, False, shortcut))


def chunks_of_a_padded_permutation(ranks, cases, seed):
    """Check that the shuffled chunks together are a permutation padded with its beginning.

    The first case is (200, 4): too large for a coincidence.
    """
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


def length_is_number_of_indices(ranks, cases):
    """Check `len` on every rank, and that the class inherits from torch's Sampler."""

    def probe(data_loader, cases):
        sampler_class = data_loader.PaddedDistributedSampler
        lengths = [
            [length_of(sampler_class(range(m), n, rank)) for rank in range(n)] for m, n in cases
        ]
        return [lengths, isinstance(sampler_class(range(10), 2, 0), Sampler)]

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


def same_permutation_in_every_process(ranks, seed):
    """Check that neither the process, nor its random state, nor N changes the permutation."""

    def probe(rank, data_loader, seed):
        kept = be_another_process(rank)
        sampler_class = data_loader.PaddedDistributedSampler
        shares = [shares_of(sampler_class, 50, n, seed=seed, epoch=2) for n in (3, 2, 7)]
        del kept
        return shares

    seen = ranks(probe, 3, process_group=False, seed=seed)

    by_world_size = [each(seen, itemgetter(number)) for number in range(3)]
    check_shuffled(joined(by_world_size[0][0]))
    raise_mistake(process_has_a_say(by_world_size[0], GUIDE))
    if not any(diagnose_shares(shares[0], 50, shuffle=True) for shares in by_world_size):
        orders = {len(shares[0]): joined(shares[0])[:50] for shares in by_world_size}
        raise_mistake(order_depends_on_world_size(orders, GUIDE))


def own_order_in_every_epoch(ranks, seed):
    """Check that each epoch has a permutation, always the same, and that the first is epoch 0's."""

    def probe(data_loader, seed):
        sampler_class = data_loader.PaddedDistributedSampler
        return passes_of_epochs(lambda: sampler_class(range(60), 2, 1, seed=seed))

    [seen] = ranks(probe, 1, process_group=False, seed=seed)

    check_shuffled(seen[1])
    raise_mistake(epoch_ignored(seen, GUIDE))


def own_order_with_every_seed(ranks, seeds):
    """Check that each of the seeds has its own permutation, and that the default seed is 0."""

    def probe(data_loader, seeds):
        sampler_class = data_loader.PaddedDistributedSampler
        by_default = shares_of(sampler_class, 60, 2)
        return [by_default, *(shares_of(sampler_class, 60, 2, seed=s) for s in seeds)]

    [seen] = ranks(probe, 1, process_group=False, seeds=[0, *seeds])

    by_default, *orders = seen
    check_shuffled(joined(orders[0]))
    raise_mistake(seed_ignored(orders, 0, GUIDE))
    raise_mistake(other_seed_by_default(by_default, orders[0], GUIDE))


def global_random_state_unchanged(ranks, samples, epoch):
    """Check that a pass over the sampler does not change any global random state."""

    def probe(data_loader, samples, epoch):
        before = random_states()
        sampler = data_loader.PaddedDistributedSampler(range(samples), 2, 0)
        sampler.set_epoch(epoch)
        return pass_watched(sampler, before)

    inputs = {"samples": samples, "epoch": epoch}
    [[order, during, touched]] = ranks(probe, 1, process_group=False, **inputs)

    check_shuffled(order)
    raise_mistake(random_state_touched(during, touched, GUIDE))


def program_prints_shares(ranks):
    """Check that, as a program, the file prints four ranks' shares and whether they are right."""

    def probe(data_loader):
        return run_with_samplers(data_loader.__file__, data_loader.PaddedDistributedSampler)

    [runs] = ranks(probe, 1, process_group=False)

    raise_mistake(raises(runs))
    raise_mistake(prints_no_shares(runs))
    raise_mistake(prints_no_verdict(runs))


def bad_arguments_refused(ranks):
    """Check that an invalid world size, rank or dataset raises a ValueError that names it."""

    def probe(data_loader):
        return refusals(data_loader.PaddedDistributedSampler, BAD_ARGUMENTS)

    [seen] = ranks(probe, 1, process_group=False)

    raise_mistake(refused_wrongly("PaddedDistributedSampler", seen, GUIDE))
