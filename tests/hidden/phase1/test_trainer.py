"""One model on N ranks: broadcasting it, and averaging its gradients, with random numbers."""

import numpy as np
import pytest

from gradsync.testing import exercise
from support.promises import replicas


@pytest.mark.parametrize(("world_size", "src"), [(3, 0), (2, 1)])
@exercise("phase1/broadcast_model", points=6)
def test_every_rank_ends_with_the_source_model(ranks, rng, world_size, src):
    """After a broadcast, every parameter and buffer equals rank src's, bit for bit."""
    seeds = [int(s) for s in rng.choice(1000, world_size, replace=False)]
    replicas.model_of_source(ranks, seeds, src)
    replicas.broadcast_in_one_order(ranks, world_size, int(rng.integers(900_000)))


@exercise("phase1/broadcast_model", points=2.5)
def test_parameters_and_buffers_stay_the_same_objects(ranks):
    """After a broadcast, the tensors are the same objects, so an optimizer still trains them."""
    replicas.same_objects_after_broadcast(ranks)


@exercise("phase1/broadcast_model", points=1.5)
def test_gradients_and_frozen_flags_are_not_changed(ranks):
    """A broadcast does not change `grad` or `requires_grad` of any parameter."""
    replicas.gradients_kept_in_broadcast(ranks)


@pytest.mark.parametrize("world_size", [4, 3, 2, 1])
@exercise("phase1/average_gradients", points=6)
def test_every_rank_ends_with_the_mean(ranks, rng, world_size):
    """Different gradients on each rank become their mean on every rank."""
    weights = 4 * rng.standard_normal((world_size, 3, 2), dtype=np.float32)
    biases = 4 * rng.standard_normal((world_size, 3), dtype=np.float32)
    replicas.mean_on_every_rank(ranks, weights, biases)
    if world_size > 1:
        replicas.averaged_in_one_order(ranks, world_size, int(rng.integers(900_000)))


@exercise("phase1/average_gradients", points=1)
def test_every_parameter_keeps_its_own_dtype(ranks, rng):
    """Parameters of several dtypes and sizes are averaged, each in its own dtype."""
    wide = rng.standard_normal((2, 1000))
    narrow = rng.standard_normal((2, 7), dtype=np.float32)
    single = rng.standard_normal(2, dtype=np.float32)
    replicas.own_dtype_kept(ranks, wide, narrow, single)


@exercise("phase1/average_gradients", points=3)
def test_a_missing_gradient_counts_as_zero(ranks, rng):
    """A gradient that some ranks do not have counts as zero there, and no rank blocks."""
    weights, biases = rng.standard_normal((4, 3, 2)), rng.standard_normal((4, 3))
    replicas.missing_counts_as_zero(ranks, weights, biases, {1, 2})
    replicas.idle_rank_takes_part(ranks, weights[:3], idle=int(rng.integers(3)))


@exercise("phase1/average_gradients", points=1.5)
def test_frozen_parameters_are_not_changed(ranks, rng):
    """The gradient of a frozen parameter stays as it is, and a missing one stays missing."""
    before, after = (rng.standard_normal((2, 1, 3)) for _ in range(2))
    replicas.frozen_unchanged(ranks, rng.standard_normal((2, 3, 2)), before, after)


@exercise("phase1/average_gradients", points=1.5)
def test_tied_parameters_are_averaged_once(ranks, rng):
    """A parameter that two layers share is averaged once."""
    replicas.tied_averaged_once(ranks, rng.standard_normal((3, 2, 2)))
