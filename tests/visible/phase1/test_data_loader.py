"""The visible tests of the sampler and the loaders: small cases to follow on paper."""

import pytest

from gradsync.testing import check, exercise
from support.probes.sampling import indices_of
from support.promises import loaders, sampling
from support.rules.shares import diagnose_shares

SHARES = "Data distribution"


class Counted:
    """A dataset of which a sampler needs only the length."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


def probe_order(rank, world_size, data_loader, samples, **options):
    """Return this rank's indices of epoch 0."""
    sampler = data_loader.PaddedDistributedSampler(Counted(samples), world_size, rank, **options)
    return indices_of(sampler)


@pytest.mark.parametrize(
    ("samples", "wanted"),
    [
        pytest.param(6, [[0, 1, 2], [3, 4, 5]], id="6 on 2"),
        pytest.param(5, [[0, 1], [2, 3], [4, 0]], id="5 on 3"),
        pytest.param(10, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]], id="10 on 4"),
        pytest.param(2, [[0], [1], [0], [1], [0]], id="2 on 5"),
    ],
)
@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_rank_gets_a_contiguous_chunk(ranks, samples, wanted):
    """Without shuffling, rank r gets the r-th chunk of 0, 1, 2, ..., padded with its beginning."""
    options = {"samples": samples, "shuffle": False}
    seen = ranks(probe_order, len(wanted), process_group=False, **options)

    shares = list(seen)
    mistake = diagnose_shares(shares, samples, shuffle=False)
    check(
        shares == wanted,
        mistake.code if mistake else "padding-wrong",
        f"{samples} samples on {len(wanted)} ranks, not shuffled: the ranks get {shares}, but "
        f"should get {wanted}.",
        ranks=[rank for rank, share in enumerate(shares) if share != wanted[rank]],
        guide=SHARES,
    )


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_a_large_share_is_complete(ranks):
    """4001 samples on 3 ranks: every rank gets 1334, and one sample is repeated."""
    sampling.chunks_of_the_padded_order(ranks, [(4001, 3)])


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_length_is_the_number_of_indices(ranks):
    """`len(sampler)` is 3 for 6 samples on 2 ranks, 2 for 5 on 3, and 1 for 2 on 5."""
    sampling.length_is_number_of_indices(ranks, [(6, 2), (5, 3), (2, 5)])


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_shuffled_shares_are_cut_from_one_permutation(ranks):
    """With shuffling, the chunks of all ranks together are a permutation, padded at its end."""
    sampling.chunks_of_a_padded_permutation(ranks, [(200, 4), (20, 2), (5, 3), (2, 5)], seed=0)


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_process_has_the_same_permutation(ranks):
    """Three processes, each with its own random state, draw the same permutation."""
    sampling.same_permutation_in_every_process(ranks, seed=0)


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_epoch_has_its_own_order(ranks):
    """Epochs 0, 1 and 2 have different orders, and a new sampler has the order of epoch 0."""
    sampling.own_order_in_every_epoch(ranks, seed=0)


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_seed_has_its_own_order(ranks):
    """Seeds 0, 1 and 2 have different orders, and the default is seed 0."""
    sampling.own_order_with_every_seed(ranks, [1, 2])


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_next_random_numbers_stay_the_same(ranks):
    """A pass over the sampler does not use or seed a global random generator."""
    sampling.global_random_state_unchanged(ranks, samples=60, epoch=0)


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_bad_arguments_raise_an_error_with_the_name(ranks):
    """num_replicas=0, rank=4 of 4, rank=-1 or an empty dataset: a ValueError names the argument."""
    sampling.bad_arguments_refused(ranks)


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_file_prints_the_shares_of_ten_samples(ranks):
    """`python template_data_loader.py` prints four ranks' shares and whether they are right."""
    sampling.program_prints_shares(ranks)


@exercise("phase1/create_dataloaders", points=1)
def test_one_rank_has_plain_loaders(ranks):
    """A single rank loads all training samples in the seed's order, and the others in order."""
    loaders.plain_on_one_rank(ranks, (12, 4), 5, seed=1)


@exercise("phase1/create_dataloaders", points=1)
def test_the_batch_size_is_per_rank_and_nothing_is_dropped(ranks):
    """12 samples in batches of 5: one rank loads 5, 5 and 2; each of two ranks loads 5 and 1."""
    loaders.batches_of_each_rank(ranks, (12, 11), 5, world_sizes=(1, 2))


@exercise("phase1/create_dataloaders", points=1)
def test_every_rank_loads_its_own_share(ranks):
    """24 training and 6 other samples on 2 ranks: each loads half, only the first are shuffled."""
    loaders.own_share_on_every_rank(ranks, (24, 6), 2, seed=0)


@exercise("phase1/create_dataloaders", points=1)
def test_the_settings_are_passed_on(ranks):
    """`num_workers` and `pin_memory` reach both loaders, on one rank and on several."""
    loaders.settings_used(ranks)
