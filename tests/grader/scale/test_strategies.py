"""Properties of simulated steps that must be true for all constants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsync.scale.costs import Compute, Network
from gradsync.scale.strategies import (
    BUCKET,
    GOOD,
    MIB,
    MICROBATCHES,
    STRATEGIES,
    Workload,
    accumulated,
    overlapped,
    paying_batches,
    plain,
    sharded,
    speedup,
)

SECONDS = st.floats(1e-7, 1.0)
BATCHES = st.integers(1, 10_000)
RANKS = st.integers(2, 1024)
WORKLOADS = st.builds(
    Workload,
    st.builds(Compute, SECONDS, SECONDS, SECONDS, st.floats(0.1, 0.9)),
    gradients=st.integers(4, 500 * MIB),
)
NETWORKS = st.builds(Network, st.sampled_from(["ring", "tree"]), SECONDS, st.floats(1e-11, 1e-6))
ALMOST = 1 + 1e-9


@given(WORKLOADS)
def test_buckets_contain_all_gradients(workload):
    buckets = workload.buckets()

    assert sum(buckets) == workload.gradients
    assert all(0 < size <= BUCKET for size in buckets)


@given(WORKLOADS, NETWORKS, BATCHES)
def test_one_rank_only_computes(workload, network, batch):
    alone = workload.compute.step(batch)

    for strategy in (plain, overlapped, sharded):
        assert strategy(workload, network, batch, 1).seconds == pytest.approx(alone)
    several = MICROBATCHES * workload.compute.passes(batch) + workload.compute.update
    assert accumulated(workload, network, batch, 1).seconds == pytest.approx(several)


@given(WORKLOADS, NETWORKS, BATCHES, RANKS)
def test_overlap_is_never_slower_and_hides_at_most_backward(workload, network, batch, ranks):
    step, without = (way(workload, network, batch, ranks) for way in (overlapped, plain))

    assert step.seconds <= without.seconds * ALMOST
    assert 0 <= step.hidden <= workload.compute.backward(batch) * ALMOST
    assert step.seconds + step.hidden == pytest.approx(without.seconds)


@given(WORKLOADS, NETWORKS, BATCHES, RANKS)
def test_more_ranks_do_not_make_a_step_faster(workload, network, batch, ranks):
    for strategy in (plain, overlapped, accumulated):
        few, many = (strategy(workload, network, batch, n).seconds for n in (ranks, ranks + 1))

        assert few <= many * ALMOST


@given(WORKLOADS, NETWORKS, BATCHES, RANKS)
def test_a_larger_batch_takes_longer_and_speeds_up_more(workload, network, batch, ranks):
    for strategy in STRATEGIES.values():
        small, large = (strategy(workload, network, n, ranks).seconds for n in (batch, 2 * batch))
        assert small <= large
    small, large = (speedup(plain, workload, network, n, ranks) for n in (batch, 2 * batch))
    assert small <= large * ALMOST


@given(WORKLOADS, NETWORKS, BATCHES, RANKS)
def test_accumulation_communicates_less_for_each_batch(workload, network, batch, ranks):
    step = accumulated(workload, network, batch, ranks)

    assert step.seconds_for_batch <= plain(workload, network, batch, ranks).seconds * ALMOST


def test_overlap_hides_all_but_the_last_bucket_on_a_fast_network():
    workload = Workload(Compute(0.0, 0.01, backward_share=0.5), gradients=4 * BUCKET)
    network = Network("ring", 1e-6, 1e-10)

    step = overlapped(workload, network, 100, 8)

    assert step.hidden == pytest.approx(step.communication * 3 / 4)


@given(WORKLOADS, NETWORKS, RANKS)
def test_with_batches_below_the_smallest_one_more_ranks_are_not_faster(workload, network, ranks):
    paying = paying_batches(plain, workload, network, ranks)

    for batch, least in ((paying.faster, 1.0), (paying.efficient, GOOD * ranks)):
        if batch is not None:
            assert speedup(plain, workload, network, batch, ranks) >= least
        if batch is not None and batch > 1:
            assert speedup(plain, workload, network, batch - 1, ranks) <= least * ALMOST


def test_no_batch_is_found_if_compute_does_not_grow_with_the_batch():
    workload = Workload(Compute(1e-3, 0.0), gradients=MIB)

    paying = paying_batches(plain, workload, Network("ring", 1.0, 0.0), 2)

    assert paying.faster is None
    assert paying.efficient is None
