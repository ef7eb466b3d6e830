"""Evaluation without padding: each sample counts once, and the model is not changed."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import assert_on_every_rank, each, exercise, raise_mistake
from support.probes.evaluation import Spy, numbers, spied_evaluation, tells_predictions_apart
from support.rules.evaluated_once import GUIDE, metrics, result_mistakes, work_not_shared
from support.rules.evaluation import kept_from_before, learned_from, mode_not_restored, other_keys
from support.rules.waiting import nobody_waited

BATCH = 4


def draw(rng, count):
    """Return inputs (sample, 4) and targets (sample,) with very different losses."""
    while True:
        data = rng.standard_normal((count, 4)) * 5, rng.integers(0, 3, count)
        if tells_predictions_apart([tuple(map(torch.from_numpy, data))]):
            return data


def probe_evaluate(rank, trainer, data):
    """Evaluate; return the result, and how the model was used.

    `again` is the result for another model with the same weights, and for negated inputs.
    """
    dataset = TensorDataset(*(torch.from_numpy(part) for part in data))
    seen = spied_evaluation(
        rank, lambda spy, loss_fn: trainer.evaluate(spy, dataset, loss_fn, BATCH)
    )
    other = TensorDataset(torch.from_numpy(-data[0]), torch.from_numpy(data[1]))
    again = trainer.evaluate(Spy(), other, nn.CrossEntropyLoss(), BATCH)
    return seen | {"again": numbers(again)}


def sample_by_sample(data):
    """Return each sample's loss, and whether it is classified correctly, as arrays (sample,)."""
    inputs, targets = (torch.from_numpy(part) for part in data)
    outputs = Spy()(inputs).detach()
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses.numpy(), (outputs.argmax(1) == targets).double().numpy()


@pytest.mark.parametrize(("world_size", "count"), [(4, 23), (3, 10), (2, 10), (1, 7)])
@exercise("phase2/evaluate", points=3)
def test_each_sample_counts_exactly_once(ranks, rng, world_size, count):
    """The results equal the results of one process, even with unequal shares and batches."""
    data = draw(rng, count)

    seen = ranks(probe_evaluate, world_size, data=data)

    check_results(seen, data)
    opposite = metrics(*sample_by_sample((-data[0], data[1])))
    raise_mistake(kept_from_before([value["again"] for value in seen], opposite, GUIDE))


@exercise("phase2/evaluate", points=1)
def test_ranks_may_have_no_samples(ranks, rng):
    """With fewer samples than ranks, every rank still returns the numbers of all samples."""
    data = draw(rng, 2)

    seen = ranks(probe_evaluate, 4, data=data)

    check_results(seen, data)


def check_results(seen, data):
    """Check the keys and numbers on every rank, and that the ranks share the work."""
    raise_mistake(nobody_waited(seen, GUIDE))
    results = each(seen, lambda value: value["result"])
    raise_mistake(other_keys(results, GUIDE))
    sizes = [[call["samples"] for call in value["calls"]] for value in seen]
    rows = [sum(own) for own in sizes]
    each_one = sample_by_sample(data)
    mistakes = result_mistakes(*each_one, BATCH, rows)
    assert_on_every_rank(results, metrics(*each_one), mistakes=mistakes)
    most = [max(own, default=0) for own in sizes]
    raise_mistake(work_not_shared(len(data[1]), BATCH, rows, most))


@exercise("phase2/evaluate", points=1)
def test_evaluation_does_not_change_the_model(ranks, rng):
    """evaluate runs in evaluation mode, without gradient tracking, and changes no gradients."""
    seen = ranks(probe_evaluate, 2, data=draw(rng, 9))

    raise_mistake(learned_from(seen, GUIDE))


@exercise("phase2/evaluate", points=1)
def test_the_mode_is_restored(ranks, rng):
    """After evaluate, the model is in the mode that it had before, training or evaluation."""
    seen = ranks(probe_evaluate, 3, data=draw(rng, 2))

    raise_mistake(mode_not_restored(seen, GUIDE))
