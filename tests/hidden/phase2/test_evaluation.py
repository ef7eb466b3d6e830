"""Evaluation without padding: each sample counts once, and nothing is learned from it."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.diagnose.values import close
from gradsync.records import Diagnosis
from gradsync.testing import assert_on_every_rank, check, each, exercise, would_be

GUIDE = "Evaluation without padding"
BATCH = 4
KEYS = {"loss", "accuracy", "samples"}


class Spy(nn.Module):
    """A linear classifier of float64 that notes how it was called."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 3).double()
        self.calls = []

    def forward(self, inputs):
        self.calls.append((self.training, torch.is_grad_enabled(), len(inputs)))
        return self.layer(inputs)


def draw(rng, count):
    """Return inputs (sample, 4) and targets (sample,): the losses vary a lot."""
    return rng.standard_normal((count, 4)) * 5, rng.integers(0, 3, count)


def probe_evaluate(rank, trainer, data):
    """Evaluate; say what it returned, and did to the model."""
    model = Spy().train(rank != 1)
    model.layer.weight.grad = torch.full((3, 4), 2.0).double()
    dataset = TensorDataset(*(torch.from_numpy(part) for part in data))
    result = trainer.evaluate(model, dataset, nn.CrossEntropyLoss(), BATCH)
    weight, bias = model.layer.weight, model.layer.bias
    kept = weight.grad is not None and bool((weight.grad == 2).all()) and bias.grad is None
    return {
        "result": {name: float(value) for name, value in dict(result).items()},
        "calls": [list(call) for call in model.calls],
        "kept_mode": [m.training for m in (model, model.layer)] == [rank != 1] * 2,
        "kept_grad": kept,
    }


def sample_by_sample(data):
    """Return each sample's loss, and whether it is classified right, as arrays (sample,)."""
    inputs, targets = (torch.from_numpy(part) for part in data)
    outputs = Spy()(inputs).detach()
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses.numpy(), (outputs.argmax(1) == targets).double().numpy()


def metrics(losses, hits, chosen=slice(None)):
    losses, hits = losses[chosen], hits[chosen]
    return {"loss": losses.mean(), "accuracy": hits.mean(), "samples": float(len(losses))}


@pytest.mark.parametrize(("world_size", "count"), [(4, 23), (3, 10), (2, 10), (1, 7)])
@exercise("phase2/evaluate", points=3)
def test_each_sample_counts_exactly_once(ranks, rng, world_size, count):
    """The numbers are those of one process, where shares and batches are of unequal size."""
    data = draw(rng, count)

    seen = ranks(probe_evaluate, world_size, data=data)

    hold_results(seen, data)


@exercise("phase2/evaluate", points=1)
def test_ranks_may_have_nothing(ranks, rng):
    """With fewer samples than ranks, every rank still has the numbers of all samples."""
    data = draw(rng, 2)

    seen = ranks(probe_evaluate, 4, data=data)

    hold_results(seen, data)


def hold_results(seen, data):
    """Check the keys and numbers on every rank, and that the ranks shared the work."""
    results, size, count = each(seen, lambda value: value["result"]), len(seen), len(data[1])
    check(
        all(set(result) == KEYS for result in results),
        "wrong-signature",
        f"evaluate returns the keys {sorted(results[0])}: loss, accuracy and samples are wanted "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    each_one = sample_by_sample(data)
    assert_on_every_rank(
        results,
        metrics(*each_one),
        mistakes=[
            differs_across_ranks,
            *(
                would_be([wrong] * size, code, f"evaluate {text}", GUIDE)
                for code, text, wrong in known_mistakes(*each_one, size)
            ),
            counts_other_samples(count),
            other_numbers,
        ],
    )
    rows = [sum(length for _, _, length in value["calls"]) for value in seen]
    whole = [rank for rank in range(size) if rows[rank] >= count]
    check(
        not whole or size == 1 or count < size,
        "same-shard-on-every-rank",
        f"rank {', '.join(map(str, whole))} ran the model on all {count} samples: each rank is to "
        f"evaluate its own share (GUIDELINES, {GUIDE})",
        ranks=whole,
        guide=GUIDE,
    )


def told(result):
    return ", ".join(f"{name} {value:.4g}" for name, value in result.items())


def differs_across_ranks(seen, expected):
    if all(close(result, seen[0]) for result in seen):
        return None
    shown = f"{told(seen[0])} on rank 0 and {told(seen[-1])} on rank {len(seen) - 1}"
    if close(seen[0], expected[0]):
        text = f"rank 0 alone has the numbers of all ranks: evaluate returns {shown}"
        others = tuple(range(1, len(seen)))
        text += f". Every rank is to have them (GUIDELINES, {GUIDE})"
        return Diagnosis("only-one-rank-has-it", others, text, guide=GUIDE)
    text = f"evaluate returns other numbers on other ranks, {shown}: sum over all ranks"
    ranks = tuple(range(len(seen)))
    return Diagnosis("loss-is-local", ranks, f"{text} (GUIDELINES, {GUIDE})", guide=GUIDE)


def counts_other_samples(count):
    """Return the rule for a wrong number of samples."""

    def rule(seen, _expected):
        counted = round(seen[0]["samples"])
        if counted == count:
            return None
        code, what = "samples-missing", "some are missing"
        if counted > count:
            code, what = "samples-repeated", "some count more than once, as padding makes them"
        text = (
            f"evaluate counts {counted} samples on {len(seen)} ranks, where the dataset has "
            f"{count}: {what} (GUIDELINES, {GUIDE})"
        )
        return Diagnosis(code, tuple(range(len(seen))), text, guide=GUIDE)

    return rule


def other_numbers(seen, _expected):
    text = (
        f"evaluate returns {told(seen[0])} on {len(seen)} ranks: the samples are right, but loss "
        f"or accuracy is not that of one process with all of them (GUIDELINES, {GUIDE})"
    )
    return Diagnosis("differs-from-single-process", tuple(range(len(seen))), text, guide=GUIDE)


def known_mistakes(losses, hits, size):
    """Yield mistakes as (code, what shows it, the numbers that it makes)."""
    right, own, count = metrics(losses, hits), "differs-from-single-process", len(losses)
    means = "averages means of unequal sizes: sums, divided once by all samples, weigh right"
    for shares in dealings(count, size):
        having = [metrics(losses, hits, share) for share in shares if len(share)]
        batches = [
            metrics(losses, hits, share[start : start + BATCH])
            for share in shares
            for start in range(0, len(share), BATCH)
        ]
        for parts in (having, batches):
            mean = {name: np.mean([p[name] for p in parts]) for name in ("loss", "accuracy")}
            yield "mean-of-means", means, {**right, **mean}
            yield "mean-of-means", means, {**right, "loss": mean["loss"]}
        total = sum(part["loss"] for part in batches)
        text = "adds up the mean losses of batches: a batch's mean counts for all its samples"
        yield "mean-of-means", text, {**right, "loss": total / count}
    odd = "returns an accuracy that is no share from 0 to 1 of the samples, but "
    yield own, odd + "a percentage", {**right, "accuracy": 100 * right["accuracy"]}
    yield own, odd + "the number of hits", {**right, "accuracy": hits.sum()}


def dealings(count, size):
    """Return the shares of all ranks, contiguous ones and strided ones: both are fine."""
    everything = np.arange(count)
    return np.array_split(everything, size), [everything[rank::size] for rank in range(size)]


def hold_model_was_run(calls):
    """Hold the model to have been run: what is left alone else is told of no evaluation."""
    check(
        len(calls) > 0,
        "differs-from-single-process",
        "evaluate returned without having run the model on any rank: what comes out of it is to be "
        f"measured on the samples (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase2/evaluate", points=1)
def test_nothing_is_learned_from_it(ranks, rng):
    """It runs in evaluation mode, without gradients, and leaves those there are alone."""
    seen = ranks(probe_evaluate, 2, data=draw(rng, 9))

    calls = [call for value in seen for call in value["calls"]]
    hold_model_was_run(calls)
    check(
        not any(training for training, _, _ in calls),
        "mode-not-restored",
        "evaluate runs the model in training mode, in which dropout and BatchNorm do not do what "
        f"they do in use (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        not any(enabled for _, enabled, _ in calls),
        "gradients-touched",
        "evaluate runs the model with gradients tracked: nothing is learned from it, and the "
        f"memory that they take is wasted (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    changed = [rank for rank in range(2) if not seen[rank]["kept_grad"]]
    check(
        not changed,
        "gradients-touched",
        "after evaluate the parameters have other gradients than before: they belong to the "
        f"training, and stay as they are (GUIDELINES, {GUIDE})",
        ranks=changed,
        guide=GUIDE,
    )


@exercise("phase2/evaluate", points=1)
def test_the_former_mode_is_put_back(ranks, rng):
    """A model in training mode is in it afterwards, one in evaluation mode too."""
    seen = ranks(probe_evaluate, 3, data=draw(rng, 2))

    hold_model_was_run([call for value in seen for call in value["calls"]])
    wrong = [rank for rank in range(3) if not seen[rank]["kept_mode"]]
    was = " and ".join(f"rank {r} ({'training' if r != 1 else 'evaluation'})" for r in wrong)
    check(
        not wrong,
        "mode-not-restored",
        f"after evaluate the model is not in the mode that it came in, on {was} "
        f"(GUIDELINES, {GUIDE})",
        ranks=wrong,
        guide=GUIDE,
    )
