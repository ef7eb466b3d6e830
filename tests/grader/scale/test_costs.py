"""The formulas of the alpha-beta model."""

from dataclasses import replace

import pytest

from gradsync.scale.costs import Network, messages

MIB = 2**20


def test_one_rank_sends_nothing():
    assert Network("ring", 1.0, 1.0).all_reduce(MIB, 1) == 0


def test_a_ring_of_four_sends_six_messages_and_one_and_a_half_times_the_buffer():
    network = Network("ring", alpha=10.0, beta=1.0)

    assert network.all_reduce(size=8, ranks=4) == 6 * 10 + 12


def test_a_tree_sends_fewer_messages_and_the_same_bytes():
    ring, tree = Network("ring", 10.0, 1.0), Network("tree", 10.0, 1.0)

    assert [messages("tree", ranks) for ranks in (1, 2, 3, 4, 5, 1024)] == [0, 1, 2, 2, 3, 10]
    assert ring.all_reduce(8, 8) - tree.all_reduce(8, 8) == 2 * (7 - 3) * 10


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_reduce_scatter_and_all_gather_cost_as_much_as_an_all_reduce(algorithm):
    network = Network(algorithm, 3.0, 2.0)

    both = network.reduce_scatter(100, 5) + network.all_gather(100, 5)

    assert both == network.all_reduce(100, 5)
    gloo = replace(network, scatters_whole=True)
    assert gloo.reduce_scatter(100, 5) == gloo.all_reduce(100, 5)


def test_ranks_that_share_cores_are_slower():
    shared = Network("ring", 0.0, 1.0, contention=1.0, cores=2)

    assert shared.all_reduce(8, 4) == 2 * shared.on_own_cores().all_reduce(8, 4)
    assert shared.all_reduce(8, 2) == shared.on_own_cores().all_reduce(8, 2)


@pytest.mark.parametrize(("ranks", "ahead"), [(2, 0), (3, 1), (4, 1), (8, 3)])
def test_each_message_waits_for_the_other_ranks_on_the_fullest_core(ranks, ahead):
    shared = Network("ring", alpha=1.0, beta=0.0, wait=10.0, cores=2)

    assert shared.all_reduce(8, ranks) == 2 * (ranks - 1) * (1 + 10 * ahead)
    assert shared.on_own_cores().all_reduce(8, ranks) == 2 * (ranks - 1)


def test_bytes_beyond_the_cache_cost_more():
    network = Network("ring", 0.0, beta=1.0, cache=100, beta_beyond=3.0)

    assert network.all_reduce(100, 2) == 100
    assert network.all_reduce(150, 2) == 100 + 3 * 50
