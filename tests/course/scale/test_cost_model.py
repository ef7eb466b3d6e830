"""The alpha-beta model recovers times that follow it, and the simulation follows from it."""

from dataclasses import replace

import pytest

from gradsync.scale.cost_model import CostModel, best_fit, fit
from gradsync.scale.samples import Sample
from gradsync.scale.simulation import Job, rate, smallest_batch, step

SIZES = [2**power for power in range(10, 27, 2)]
RING = CostModel("ring", call=2e-5, alpha=1e-5, beta=1e-9)
TREE = CostModel("tree", call=2e-5, alpha=1e-5, beta=1e-9)
JOB = Job(gradient_bytes=400_000, fixed=1e-3, per_sample=1e-5)


def samples_of(model, ranks=(2, 4, 8), sizes=SIZES, factor=1.0):
    return [Sample(n, size, factor * model.seconds(n, size)) for n in ranks for size in sizes]


@pytest.mark.parametrize("model", [RING, TREE])
def test_the_times_of_a_model_are_recovered(model):
    found = fit(samples_of(model), model.shape)

    assert [found.call, found.alpha, found.beta] == pytest.approx([2e-5, 1e-5, 1e-9], rel=1e-3)


@pytest.mark.parametrize("model", [RING, TREE])
def test_the_shape_is_recognised(model):
    assert best_fit(samples_of(model)).shape == model.shape


def test_a_few_delayed_samples_change_little():
    samples = samples_of(RING)
    delayed = [Sample(s.ranks, s.size, 20 * s.seconds) for s in samples[::9]]

    assert fit([*samples, *delayed], "ring").error(samples_of(RING, ranks=(3,))) < 0.1


def test_other_sizes_and_ranks_are_predicted():
    found = best_fit(samples_of(RING))

    assert found.error(samples_of(RING, ranks=(3, 1024), sizes=[3000, 50_000_000])) < 0.01


def test_the_error_is_the_median_of_relative_errors():
    assert RING.error(samples_of(RING, factor=2.0)) == pytest.approx(0.5)


def test_ranks_that_share_cores_take_turns():
    shared = replace(RING, cores=2)

    assert shared.seconds(2, 4096) == RING.seconds(2, 4096)
    assert shared.seconds(4, 4096) == pytest.approx(2 * RING.seconds(4, 4096))
    assert best_fit(samples_of(shared), cores=2).on_own_cores().error(samples_of(RING)) < 0.01


def test_one_rank_needs_no_communication():
    for way in ("data parallel", "buckets", "accumulation", "sharding"):
        expected = JOB.computing(50) * (JOB.accumulation if way == "accumulation" else 1)
        assert step(JOB, RING, way, 1, 50) == pytest.approx(expected)


def test_buckets_hide_communication_in_the_backward_pass():
    bandwidth = CostModel("ring", call=0.0, alpha=0.0, beta=1e-9)

    plain = step(JOB, bandwidth, "data parallel", 8, 50)
    overlapping = step(JOB, bandwidth, "buckets", 8, 50)

    last_bucket = bandwidth.seconds(8, JOB.gradient_bytes // JOB.buckets)
    assert overlapping < plain
    assert overlapping == pytest.approx(JOB.computing(50) + last_bucket)


def test_accumulation_needs_one_all_reduce_for_several_batches():
    seconds = step(JOB, RING, "accumulation", 8, 50)

    assert seconds == pytest.approx(4 * JOB.computing(50) + RING.seconds(8, 400_000))


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_it_pays_exactly_from_the_smallest_batch_on(ranks):
    slow = CostModel("ring", call=1e-2, alpha=1e-3, beta=1e-9)
    batch = smallest_batch(JOB, slow, ranks, 1 / ranks)

    def faster(size):
        return rate(JOB, slow, "data parallel", ranks, size) > rate(JOB, slow, "buckets", 1, size)

    assert faster(batch)
    assert batch == 1 or not faster(batch - 1)
