"""The reference samplers of both phases meet their contract for any M, N, seed and epoch."""

import importlib.util
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

SOLUTIONS = Path(__file__).parents[3] / "solutions"
M, N = st.integers(1, 2000), st.integers(1, 64)
NUMBER = st.integers(0, 2**31 - 1)
ORDERS = st.tuples(st.booleans(), NUMBER, NUMBER)  # shuffle, seed, epoch
MANY = settings(max_examples=120)  # of up to 64 samplers of 2,000 samples


def sampler_of(phase, name):
    path = SOLUTIONS / phase / "template_data_loader.py"
    spec = importlib.util.spec_from_file_location(f"solution_of_{phase}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


Padded = sampler_of("phase1", "PaddedDistributedSampler")
Resumable = sampler_of("phase2", "ResumableDistributedSampler")
both = pytest.mark.parametrize("sampler_class", [Padded, Resumable])


def samplers(sampler_class, m, n, shuffle=False, seed=0, epoch=0, **options):
    made = [sampler_class(range(m), n, r, shuffle=shuffle, seed=seed, **options) for r in range(n)]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


def shares_of(sampler_class, m, n, *order, **options):
    return [list(sampler) for sampler in samplers(sampler_class, m, n, *order, **options)]


def dealt(shares):
    """Return the order from which strided shares were taken, including padding."""
    return [index for row in zip(*shares, strict=True) for index in row]


def joined(shares):
    return [index for share in shares for index in share]


def as_dealt(sampler_class, shares):
    return joined(shares) if sampler_class is Padded else dealt(shares)


def torchs(m, n, drop_last=False):
    """Return torch's shares without shuffling: strided and padded as in phase 2."""
    return [
        list(DistributedSampler(range(m), n, r, shuffle=False, drop_last=drop_last))
        for r in range(n)
    ]


@both
@MANY
@given(m=M, n=N, order=ORDERS)
def test_all_ranks_get_as_many_indices_as_their_length(sampler_class, m, n, order):
    made = samplers(sampler_class, m, n, *order)

    assert {len(sampler) for sampler in made} == {math.ceil(m / n)}
    assert {len(list(sampler)) for sampler in made} == {math.ceil(m / n)}


@both
@MANY
@given(m=M, n=N, order=ORDERS)
def test_the_ranks_share_one_order_padded_with_its_own_beginning(sampler_class, m, n, order):
    together = as_dealt(sampler_class, shares_of(sampler_class, m, n, *order))

    assert sorted(together[:m]) == list(range(m))
    assert together[m:] == [together[k % m] for k in range(len(together) - m)]
    assert order[0] or together[:m] == list(range(m))


@both
@MANY
@given(m=M, n=N, order=ORDERS)
def test_the_order_depends_only_on_seed_and_epoch(sampler_class, m, n, order):
    [alone] = shares_of(sampler_class, m, 1, *order)
    together = as_dealt(sampler_class, shares_of(sampler_class, m, n, *order))

    assert together[:m] == alone


@both
@given(m=st.integers(40, 200), seed=NUMBER, epoch=NUMBER)
def test_a_different_seed_or_epoch_gives_a_different_order(sampler_class, m, seed, epoch):
    [order] = shares_of(sampler_class, m, 1, True, seed, epoch)

    assert order != shares_of(sampler_class, m, 1, True, seed + 1, epoch)[0]
    assert order != shares_of(sampler_class, m, 1, True, seed, epoch + 1)[0]
    assert order != sorted(order)


@MANY
@given(m=M, n=N)
def test_phase_1_has_the_order_of_torch_in_chunks(m, n):
    shares = shares_of(Padded, m, n)

    assert joined(shares) == dealt(torchs(m, n))


@MANY
@given(m=M, n=N, drop_last=st.booleans())
def test_phase_2_has_the_shares_of_torch(m, n, drop_last):
    assert shares_of(Resumable, m, n, drop_last=drop_last) == torchs(m, n, drop_last)


@MANY
@given(m=M, n=N, order=ORDERS, drop_last=st.booleans(), data=st.data())
def test_phase_2_resumed_has_the_shares_of_torch_for_the_rest(m, n, order, drop_last, data):
    seen = data.draw(st.integers(0, m - 1))
    [alone] = shares_of(Resumable, m, 1, *order)
    rest = alone[seen:]
    made = samplers(Resumable, m, n, *order, drop_last=drop_last)
    for sampler in made:
        sampler.resume(order[2], seen)
    lengths = [len(sampler) for sampler in made]
    shares = [list(sampler) for sampler in made]

    wanted = torchs(len(rest), n, drop_last)
    assert shares == [[rest[position] for position in share] for share in wanted]
    assert lengths == [len(share) for share in wanted]
    assert [list(sampler) for sampler in made] == (
        shares_of(Resumable, m, n, *order, drop_last=drop_last)
    )


@given(n=N, over=st.integers(0, 63))
def test_phase_2_has_no_samples_after_the_padding(n, over):
    """A trainer that also counts the padding resumes up to N-1 positions after the end."""
    made = samplers(Resumable, 10, n)
    for sampler in made:
        sampler.resume(0, 10 + over % n)

    assert {len(sampler) for sampler in made} == {0}
    assert [list(sampler) for sampler in made] == [[]] * n
