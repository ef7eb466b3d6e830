"""Evaluation without padding: each sample counts once, and the model is not changed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.records import Diagnosis
from gradsync.testing import assert_on_every_rank, check, each, exercise, raise_mistake
from gradsync.text import ranks_text
from support.probes.evaluation import Spy, numbers, spied_evaluation, tells_predictions_apart
from support.rules.evaluation import (
    differs_across_ranks,
    kept_from_before,
    learned_from,
    mode_not_restored,
    other_keys,
    own_samples_alone,
    pairs,
    predicts_otherwise,
)
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import ends_with

GUIDE = "Evaluation without padding"
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


def metrics(losses, hits, chosen=slice(None)):
    losses, hits = losses[chosen], hits[chosen]
    return {"loss": losses.mean(), "accuracy": hits.mean(), "samples": float(len(losses))}


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
    results, size, count = each(seen, lambda value: value["result"]), len(seen), len(data[1])
    raise_mistake(other_keys(results, GUIDE))
    each_one = sample_by_sample(data)
    rows = [sum(call["samples"] for call in value["calls"]) for value in seen]
    assert_on_every_rank(
        results,
        metrics(*each_one),
        mistakes=[
            *(
                own_samples_alone([metrics(*each_one, s) if len(s) else {} for s in shares], GUIDE)
                for shares in dealings(count, size)
            ),
            differs_across_ranks(GUIDE),
            *(
                ends_with([wrong] * size, code, text, GUIDE)
                for code, text, wrong in known_mistakes(*each_one, size)
            ),
            all_on_every_rank(rows, count),
            counts_other_samples(count),
            predicts_otherwise(GUIDE),
            other_numbers,
        ],
    )
    whole = [rank for rank in range(size) if rows[rank] >= count]
    check(
        not whole or size == 1 or count < size,
        "same-shard-on-every-rank",
        f"{ranks_text(whole).capitalize()} ran the model on all {count} samples. Each rank must "
        "evaluate only its own share.",
        ranks=whole,
        guide=GUIDE,
    )
    most = [max((call["samples"] for call in value["calls"]), default=0) for value in seen]
    check(
        max(most) <= BATCH,
        "batch-size-ignored",
        f"With batch_size={BATCH}, evaluate runs the model on {max(most)} samples at once. Split "
        "each rank's share into batches: a large share does not fit into memory.",
        ranks=[rank for rank in range(size) if most[rank] > BATCH],
        guide=GUIDE,
    )


def all_on_every_rank(rows, count):
    """Return the rule for ranks that each evaluate all samples, and then add up their sums."""

    def rule(seen, _expected):
        size = len(seen)
        summed = all(result["samples"] == count * size for result in seen)
        if not 1 < size <= count or not summed or rows != [count] * size:
            return None
        text = (
            f"evaluate counts {count * size} samples on {size} ranks, but the dataset has {count}: "
            "every rank evaluates all of them, and their sums are added up. Each rank must "
            "evaluate only its own share."
        )
        return Diagnosis("same-shard-on-every-rank", tuple(range(size)), text, guide=GUIDE)

    return rule


def counts_other_samples(count):
    """Return the rule for a wrong number of samples."""

    def rule(seen, _expected):
        counted = round(seen[0]["samples"])
        if counted == count:
            return None
        code, what = "samples-missing", "some are missing"
        if counted > count:
            code, what = "samples-repeated", "some count more than once, such as padding"
        text = (
            f"evaluate counts {counted} samples on {len(seen)} ranks, but the dataset has {count}: "
            f"{what}. Each sample must count once."
        )
        return Diagnosis(code, tuple(range(len(seen))), text, guide=GUIDE)

    return rule


def other_numbers(seen, _expected):
    text = (
        f"evaluate returns {pairs(seen[0])} on {len(seen)} ranks. The number of samples is right, "
        "but the loss or the accuracy differs from the result of one process with all samples."
    )
    return Diagnosis("differs-from-single-process", tuple(range(len(seen))), text, guide=GUIDE)


def known_mistakes(losses, hits, size):
    """Yield each known mistake as (code, message, the resulting numbers)."""
    right, own, count = metrics(losses, hits), "differs-from-single-process", len(losses)
    means = "evaluate averages the means of parts of unequal size. Add up the sums of all parts, "
    means += "and divide once by the number of all samples."
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
        text = "evaluate adds up the mean losses of the batches and divides by the samples. "
        text += "Multiply each batch's mean loss by the number of samples in it."
        yield "mean-of-means", text, {**right, "loss": total / count}
        text = (
            "evaluate multiplies each batch's mean loss by batch_size. The last batch of a share "
        )
        text += "may be smaller: multiply by the number of samples in the batch."
        yield "mean-of-means", text, {**right, "loss": total * BATCH / count}
    odd = "evaluate returns {} as the accuracy. Return the share of correct samples, from 0 to 1."
    yield own, odd.format("a percentage"), {**right, "accuracy": 100 * right["accuracy"]}
    yield own, odd.format("the number of correct samples"), {**right, "accuracy": hits.sum()}


def dealings(count, size):
    """Return the shares of all ranks: contiguous and strided ones, which are both accepted."""
    everything = np.arange(count)
    return np.array_split(everything, size), [everything[rank::size] for rank in range(size)]


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
