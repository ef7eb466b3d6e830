"""Fits recover the constants from which the timings were computed."""

import itertools
import statistics
from random import Random

import pytest

from gradsync.scale.costs import Network
from gradsync.scale.fitting import BatchTiming, Timing, errors, fit_compute, fit_network

SIZES = [1024 * 4**power for power in range(9)]


def timings_of(network, ranks, noise=0.0):
    random = Random(0)
    return [
        Timing(number, size, network.all_reduce(size, number) * random.lognormvariate(0, noise))
        for number, size in itertools.product(ranks, SIZES)
    ]


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_a_fit_recovers_latency_bandwidth_and_algorithm(algorithm):
    network = Network(algorithm, alpha=2e-5, beta=4e-10)

    found = fit_network(timings_of(network, [2, 4, 16]))

    assert found.algorithm == algorithm
    assert found.alpha == pytest.approx(network.alpha, rel=1e-3)
    assert found.beta == pytest.approx(network.beta, rel=1e-3)


def test_a_fit_recovers_contention_and_the_cache():
    network = Network(
        "ring", 1e-4, 3e-10, 1.3, cores=2, cache=SIZES[5], beta_beyond=2e-9, wait=8e-4
    )

    found = fit_network(timings_of(network, [2, 4]), cores=2)

    assert found.algorithm == "ring"
    assert found.cache == network.cache
    assert found.contention == pytest.approx(1.3, rel=0.01)
    assert found.wait == pytest.approx(8e-4, rel=0.01)
    assert found.beta_beyond == pytest.approx(2e-9, rel=0.01)


def test_noise_and_one_outlier_change_the_fit_little():
    network = Network("ring", 2e-5, 4e-10)
    timings = timings_of(network, [2, 4], noise=0.1)
    timings[3] = Timing(timings[3].ranks, timings[3].size, 50 * timings[3].seconds)

    found = fit_network(timings)

    assert found.alpha == pytest.approx(network.alpha, rel=0.2)
    assert found.beta == pytest.approx(network.beta, rel=0.2)


def test_a_ring_is_assumed_if_all_timings_have_the_same_number_of_ranks():
    assert fit_network(timings_of(Network("tree", 1e-5, 1e-9), [8])).algorithm == "ring"


def test_errors_are_relative_to_the_measured_time():
    timings = timings_of(Network("ring", 1e-5, 1e-9), [2])

    assert statistics.median(errors(Network("ring", 2e-5, 2e-9), timings)) == pytest.approx(1.0)


def test_a_fit_needs_two_sizes():
    with pytest.raises(ValueError, match="two sizes"):
        fit_network([Timing(2, 1024, 1e-3), Timing(4, 1024, 1e-3)])


def test_compute_has_a_part_for_each_batch_and_a_part_for_each_sample():
    timings = [
        BatchTiming(
            batch,
            forward=(0.002 + 1e-4 * batch) / 4,
            backward=(0.002 + 1e-4 * batch) * 3 / 4,
            update=3e-4,
        )
        for batch in (32, 128, 512, 2048)
    ]

    found = fit_compute(timings)

    assert found.fixed == pytest.approx(0.002, rel=0.01)
    assert found.per_sample == pytest.approx(1e-4, rel=0.01)
    assert found.update == 3e-4
    assert found.backward_share == pytest.approx(0.75)
