"""Ways to split a transformer, with numbers that can be computed by hand."""

from dataclasses import replace

import pytest

from gradsync.scale.costs import Compute, Network
from gradsync.scale.transformers import WAYS, Cost, Transformer, bubble, microbatches

# 400 bytes of parameters; a sample takes 1 s, and its outputs of a layer have 128 bytes.
MODEL = Transformer(2, width=4, tokens=8, compute=Compute(0.0, 1.0, update=2.0), parameters=100)
NETWORK = Network("ring", alpha=10.0, beta=1.0)
KEPT = 2 * 16 * 128  # bytes of a sample's activations


@pytest.mark.parametrize(
    ("way", "cost"),
    [
        # An all-reduce of 400 bytes on 2 ranks: 2 messages, and 400 bytes from each rank.
        ("data parallel", Cost(1 + 2 + 420, 400, 1600, KEPT)),
        ("ZeRO-1", Cost(1 + 1 + 420, 400, 400 + 400 + 400, KEPT)),
        ("ZeRO-2", Cost(1 + 1 + 420, 400, 400 + 200 + 400, KEPT)),
        # 2 layers of 200 bytes: 3 times a message with half of it; one layer is whole.
        ("ZeRO-3", Cost(1 + 1 + 2 * 3 * 110, 600, 800 + 200, KEPT)),
        # 4 all-reduces in each of 2 layers, of the outputs of both samples; 10/16 are kept.
        ("tensor", Cost(1 + 1 + 8 * (20 + 256), 8 * 256, 800, 2 * KEPT * 10 / 16)),
        # 2 microbatches and 1 for the bubble, each with half of the layers and two messages; the
        # first rank keeps both microbatches of its layer.
        ("pipeline", Cost(3 * (0.5 + 2 * 138) + 1, 2 * 128, 800, 2 * KEPT / 2)),
        # In each layer 1 exchange of keys and values in forward, and 1 and 2 in backward.
        ("ring attention", Cost(423 + 8 * 266, 400 + 8 * 256, 1600, KEPT + 2 * 256)),
    ],
)
def test_two_ranks_with_a_sample_each(way, cost):
    assert WAYS[way](MODEL, NETWORK, 1, 2) == cost


@pytest.mark.parametrize("way", WAYS)
def test_one_rank_sends_nothing_and_has_everything(way):
    assert WAYS[way](MODEL, NETWORK, 3, 1) == Cost(3 + 2, 0, 1600, 3 * KEPT)


@pytest.mark.parametrize("way", ["tensor", "pipeline", "ring attention"])
def test_what_three_ranks_do_not_divide_has_no_cost(way):
    assert WAYS[way](MODEL, NETWORK, 1, 3) is None


@pytest.mark.parametrize(
    ("layers", "head", "cores", "ranks", "seconds"),
    [
        (3, 0.0, None, 2, (8 + 1) * 2 / 3),  # the longest stage has 2 of 3 layers
        (2, 1.0, None, 2, (8 + 1) * 2 / 3),
        (4, 1.0, 2, 4, (16 + 1 / 2) / 4),  # both cores are busy, but one in the first and last half
    ],
)
def test_a_pipeline_waits_for_its_longest_stage_or_for_cores(layers, head, cores, ranks, seconds):
    model = replace(MODEL, layers=layers, head=head, compute=Compute(0.0, 1.0))

    cost = WAYS["pipeline"](model, Network("ring", 0.0, 0.0, cores=cores), 4, ranks)

    assert cost.seconds == seconds  # of microbatches of 1 sample
    assert cost.states == pytest.approx(1600 * -(-layers // ranks) / layers)


@pytest.mark.parametrize(
    ("batch", "ranks", "count", "share"), [(64, 4, 16, 3 / 19), (1, 4, 4, 3 / 7), (64, 1, 1, 0.0)]
)
def test_the_bubble_of_a_pipeline(batch, ranks, count, share):
    assert microbatches(batch, ranks) == count
    assert bubble(batch, ranks) == share


def test_a_layer_that_is_gathered_in_parts_sends_more_messages():
    parts = WAYS["ZeRO-3"](replace(MODEL, gathers=4), NETWORK, 1, 2)

    whole = WAYS["ZeRO-3"](MODEL, NETWORK, 1, 2)
    assert parts.seconds - whole.seconds == 2 * 3 * (4 - 1) * 10
    assert parts.sent == whole.sent


def test_a_larger_transformer_takes_longer_by_its_multiplications():
    small = replace(MODEL, compute=Compute(1.0, 1.0, update=1.0))

    model = small.on(4, 8, 8)

    assert model.parameters == 12 * 4 * 64
    # twice the layers, and for each token 6 * 64 + 64 instead of 6 * 16 + 32
    assert model.compute == Compute(2.0, 2 * 448 / 128, update=30.72)
