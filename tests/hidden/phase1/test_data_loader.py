"""The sampler, with random numbers of samples and ranks, and random seeds."""

from gradsync.testing import exercise
from support.promises import sampling


def draw_cases(rng, count=40):
    """Draw pairs (M, N): divisible or not, more ranks than samples, one sample, one rank.

    In the last pair, a rank's share is larger than Python's recursion limit.
    """
    drawn = [(int(rng.integers(1, 120)), int(rng.integers(1, 17))) for _ in range(count)]
    return [(10, 4), (8, 4), (1, 4), (3, 8), (7, 1), (1, 1), (2, 3), *drawn, (4001, 3)]


@exercise("phase1/PaddedDistributedSampler", points=4)
def test_every_rank_gets_its_chunk_of_the_padded_order(ranks, rng):
    """Without shuffling, rank r gets the r-th contiguous chunk of the padded order 0..M-1."""
    sampling.chunks_of_the_padded_order(ranks, draw_cases(rng))


@exercise("phase1/PaddedDistributedSampler", points=3)
def test_shuffled_shares_are_chunks_of_one_padded_permutation(ranks, rng):
    """With shuffling, the ranks' chunks together are a permutation padded with its beginning."""
    cases = [(200, 4), *draw_cases(rng)]
    sampling.chunks_of_a_padded_permutation(ranks, cases, int(rng.integers(1000)))


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_length_is_the_number_of_indices(ranks, rng):
    """`len(sampler)` is ceil(M/N) on every rank, and the class inherits from torch's Sampler."""
    sampling.length_is_number_of_indices(ranks, draw_cases(rng))


@exercise("phase1/PaddedDistributedSampler", points=2)
def test_every_process_has_the_same_permutation(ranks, rng):
    """The permutation depends only on (seed, epoch), not on the process or its random state."""
    sampling.same_permutation_in_every_process(ranks, int(rng.integers(1000)))


@exercise("phase1/PaddedDistributedSampler", points=1.5)
def test_every_epoch_has_its_own_order(ranks, rng):
    """Each epoch has its own permutation, the same every time; a new sampler is at epoch 0."""
    sampling.own_order_in_every_epoch(ranks, int(rng.integers(1000)))


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_every_seed_has_its_own_order(ranks, rng):
    """Each seed has its own permutation, and the default seed is 0."""
    first = int(rng.integers(1, 1000))
    sampling.own_order_with_every_seed(ranks, [first, first + 1, first + 7])


@exercise("phase1/PaddedDistributedSampler", points=1.5)
def test_the_global_random_state_is_not_changed(ranks, rng):
    """A pass over the sampler does not change any global random state."""
    sampling.global_random_state_unchanged(ranks, 50, int(rng.integers(1, 1000)))


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_the_file_prints_the_shares_of_ten_samples(ranks):
    """Run as a program, the file prints four ranks' shares and whether they are right."""
    sampling.program_prints_shares(ranks)


@exercise("phase1/PaddedDistributedSampler", points=1)
def test_bad_arguments_raise_an_error_with_the_name(ranks):
    """An invalid world size, rank or dataset raises a ValueError that names it."""
    sampling.bad_arguments_refused(ranks)
