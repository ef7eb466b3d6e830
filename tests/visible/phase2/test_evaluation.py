"""Visible tests of evaluate: five samples on two ranks."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import assert_on_every_rank, each, exercise, raise_mistake
from support.probes.evaluation import numbers, spied_evaluation
from support.rules.evaluated_once import GUIDE, metrics, result_mistakes, work_not_shared
from support.rules.evaluation import kept_from_before, learned_from, mode_not_restored, other_keys
from support.rules.waiting import nobody_waited

# The loss of a sample is its first output. The class of all is 0, which the first three hit.
LOSSES, HITS = np.array([4.0, 1.0, 2.0, 0.0, 3.0]), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
BATCH = 2


class Same(nn.Module):
    """A model whose outputs are its inputs; records the number of samples in each call."""

    def __init__(self):
        super().__init__()
        self.unused, self.sizes = nn.Parameter(torch.zeros(1)), []

    def forward(self, inputs):
        self.sizes.append(len(inputs))
        return inputs


def probe_numbers(trainer, losses, hits):
    """Evaluate samples with these losses and hits, and then samples with other ones."""

    def dataset(losses, hits):
        outputs = torch.tensor(losses)
        others = outputs + torch.where(torch.tensor(hits) > 0, -1.0, 1.0)
        return TensorDataset(torch.stack([outputs, others], dim=1), torch.zeros(len(losses)).long())

    def first_output(outputs, _targets):
        return outputs[:, 0].mean()

    model = Same()
    result = numbers(trainer.evaluate(model, dataset(losses, hits), first_output, BATCH))
    sizes = list(model.sizes)
    other = dataset([loss + 1 for loss in losses], [1 - hit for hit in hits])
    again = numbers(trainer.evaluate(Same(), other, first_output, BATCH))
    return {"result": result, "sizes": sizes, "again": again}


def run_numbers(ranks, world_size, count=5):
    given = {"losses": LOSSES[:count].tolist(), "hits": HITS[:count].tolist()}
    seen = ranks(probe_numbers, world_size, **given)
    raise_mistake(nobody_waited(seen, GUIDE))
    results = each(seen, lambda value: value["result"])
    raise_mistake(other_keys(results, GUIDE))
    return seen, results


def check_numbers(seen, results, count=5):
    losses, hits = LOSSES[:count], HITS[:count]
    rows = [sum(value["sizes"]) for value in seen]
    mistakes = result_mistakes(losses, hits, BATCH, rows)
    assert_on_every_rank(results, metrics(losses, hits), mistakes=mistakes)


@exercise("phase2/evaluate", points=1)
def test_each_of_five_samples_counts_once(ranks):
    """The losses are 4, 1, 2, 0 and 3, and the first three are right: loss 2 and accuracy 0.6.

    On two ranks, with batches of 2, and on a single one.
    """
    for world_size in (2, 1):
        check_numbers(*run_numbers(ranks, world_size))


@exercise("phase2/evaluate", points=1)
def test_each_rank_evaluates_its_share_in_batches(ranks):
    """Of five samples, no rank runs the model on all, and none on more than 2 at once."""
    seen, results = run_numbers(ranks, 2)

    check_numbers(seen, results)
    sizes = [value["sizes"] for value in seen]
    most = [max(own, default=0) for own in sizes]
    raise_mistake(work_not_shared(5, BATCH, [sum(own) for own in sizes], most))


@exercise("phase2/evaluate", points=1)
def test_ranks_may_have_no_samples(ranks):
    """Two samples on three ranks: all return loss 2.5, accuracy 1 and 2 samples."""
    check_numbers(*run_numbers(ranks, 3, count=2), count=2)


@exercise("phase2/evaluate", points=1)
def test_a_second_evaluation_starts_from_zero(ranks):
    """A second call, with every loss larger by 1 and other hits, returns loss 3, accuracy 0.4."""
    seen, results = run_numbers(ranks, 2)

    check_numbers(seen, results)
    again = [value["again"] for value in seen]
    raise_mistake(kept_from_before(again, metrics(LOSSES + 1, 1 - HITS), GUIDE))


def probe_model(rank, trainer):
    """Evaluate a model that has gradients and a frozen bias; report what has changed."""
    data = TensorDataset(torch.arange(20.0).double().reshape(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    return spied_evaluation(
        rank, lambda model, loss_fn: trainer.evaluate(model, data, loss_fn, BATCH)
    )


@exercise("phase2/evaluate", points=1)
def test_evaluation_does_not_change_the_model(ranks):
    """The model runs in evaluation mode and without gradient tracking; its gradients stay."""
    raise_mistake(learned_from(ranks(probe_model, world_size=2), GUIDE))


@exercise("phase2/evaluate", points=1)
def test_the_mode_is_restored(ranks):
    """The model is in training mode on rank 0 and in evaluation mode on rank 1, before and after.

    Gradient tracking is on afterwards.
    """
    raise_mistake(mode_not_restored(ranks(probe_model, world_size=2), GUIDE))
