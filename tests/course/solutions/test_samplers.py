"""The reference samplers of both phases meet their contract for any M, N, seed and epoch.

The rules say whether shares are right; tests/course/rules compares the rules with torch's sampler.
"""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.rules.shares import diagnose_shares
from support.rules.strides import diagnose_strides

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


def shares_of(sampler_class, m, n, shuffle, seed, epoch, *, resumed=None, **options):
    """Return the ranks' shares, each as long as its sampler says."""
    made = [sampler_class(range(m), n, r, shuffle=shuffle, seed=seed, **options) for r in range(n)]
    for sampler in made:
        sampler.set_epoch(epoch)
        if resumed is not None:
            sampler.resume(epoch, resumed)
    lengths = [len(sampler) for sampler in made]
    shares = [list(sampler) for sampler in made]
    assert lengths == [len(share) for share in shares]
    return shares


@both
@MANY
@given(m=M, n=N, order=ORDERS, drop_last=st.booleans())
def test_the_ranks_share_the_order_of_one_rank(sampler_class, m, n, order, drop_last):
    [alone] = shares_of(sampler_class, m, 1, *order)

    assert sorted(alone) == list(range(m))
    assert order[0] or alone == sorted(alone)
    if sampler_class is Padded:
        shares = shares_of(Padded, m, n, *order)
        assert diagnose_shares(shares, m, shuffle=order[0]) is None
        assert [index for share in shares for index in share][:m] == alone
    else:
        shares = shares_of(Resumable, m, n, *order, drop_last=drop_last)
        assert diagnose_strides(shares, alone, drop_last=drop_last) is None


@both
@given(m=st.integers(40, 200), seed=NUMBER, epoch=NUMBER)
def test_a_different_seed_or_epoch_gives_a_different_order(sampler_class, m, seed, epoch):
    [order] = shares_of(sampler_class, m, 1, True, seed, epoch)

    assert order != shares_of(sampler_class, m, 1, True, seed + 1, epoch)[0]
    assert order != shares_of(sampler_class, m, 1, True, seed, epoch + 1)[0]
    assert order != sorted(order)


@MANY
@given(m=M, n=N, order=ORDERS, drop_last=st.booleans(), seen=NUMBER)
def test_ranks_that_resume_share_the_rest(m, n, order, drop_last, seen):
    """A trainer that also counts the padding resumes up to N-1 positions after the end."""
    seen %= m + n
    [alone] = shares_of(Resumable, m, 1, *order)

    shares = shares_of(Resumable, m, n, *order, resumed=seen, drop_last=drop_last)

    assert diagnose_strides(shares, alone, seen=seen, drop_last=drop_last) is None


@given(m=M, n=N, order=ORDERS, seen=NUMBER)
def test_only_the_next_pass_is_resumed(m, n, order, seen):
    sampler = Resumable(range(m), n, 0, shuffle=order[0], seed=order[1])
    sampler.set_epoch(order[2])
    whole = list(sampler)
    sampler.resume(order[2], seen % m)

    list(sampler)

    assert list(sampler) == whole
