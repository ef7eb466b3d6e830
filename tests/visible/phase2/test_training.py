"""Visible tests of training without interruption: few samples, few epochs."""

from functools import partial

import numpy as np

from gradsync.testing import (
    assert_on_every_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.values import close
from gradsync.text import listed
from support.probes import Info
from support.probes.training import (
    LEARNING_RATE,
    Classifier,
    draw_samples,
    one_process,
    orders_of_sampler,
    spied_training,
    steps_of,
)
from support.rules.accumulation import not_split, uneven_microbatches
from support.rules.epochs import order_of_another_epoch, other_samples
from support.rules.histories import kept_from_earlier_calls, other_numbers, other_rows
from support.rules.means import other_means
from support.rules.printing import other_lines
from support.rules.training import (
    batches_divided,
    later_steps_differ,
    models_differ,
    other_counts,
    trained_in_evaluation_mode,
    training_mistakes,
    with_its_momentum,
)
from support.rules.wrong_results import differs_from_one_process

GUIDE, SAMPLER, STEP = "Resuming", "Resumable shares", "Gradient accumulation"


def data_of(samples, known=4):
    """Return training samples and `known` validation samples, with 4 numbers each."""
    rng = np.random.default_rng(1)
    return [draw_samples(rng, samples), draw_samples(rng, known)]


def probe_train(rank, world_size, trainer, calls):
    """Call train with each of these options; return a description of each training run.

    The model has the weights of `seeds[rank]`, and starts in evaluation mode if `evaluating`.
    """
    runs = []
    for data, seeds, evaluating, options in calls:
        info, model = Info(rank, world_size), Classifier(seeds[rank]).train(not evaluating)
        seen = spied_training(trainer.train, info, model, data, **options)
        place = rank, world_size, len(data[0][1]), options.get("seed", 0)
        orders = orders_of_sampler("ResumableDistributedSampler", *place)
        runs.append({**seen, "orders": orders})
    return runs


def train(ranks, *calls, seeds=(1, 1), evaluating=False, data):
    """Train on two ranks once for each of these options; return the observation of each run."""
    calls = [(data, list(seeds), evaluating, options) for options in calls]
    return case_by_case(ranks(probe_train, world_size=2, calls=calls), len(calls))


@exercise("phase2/train", points=1)
def test_every_epoch_uses_the_shares_in_a_new_order(ranks):
    """11 samples on two ranks: each gets 6 in an epoch, in an order of the epoch and the seed."""
    twice = {"epochs": 2, "batch_size": 4, "seed": 0}
    once = {"epochs": 1, "batch_size": 4}

    runs = train(ranks, twice, {**once, "seed": 4}, once, data=data_of(11))

    seen, reseeded, unseeded = runs
    headings = {"shares": SAMPLER, "epochs": SAMPLER, "guide": GUIDE}
    raise_mistake(other_samples(seen, reseeded, unseeded, samples=11, **headings))
    for run in (seen, reseeded):
        raise_mistake(order_of_another_epoch(run, SAMPLER))


@exercise("phase2/train", points=1)
def test_the_model_trains_in_training_mode(ranks):
    """A model that is in evaluation mode is switched to training mode, in each of two epochs."""
    options = {"epochs": 2, "batch_size": 4}

    [seen] = train(ranks, options, data=data_of(8), evaluating=True)

    raise_mistake(trained_in_evaluation_mode(seen, GUIDE))
    raise_mistake(other_counts(seen, 2 * 4, SAMPLER))


@exercise("phase2/train", points=1)
def test_two_ranks_train_like_one_process(ranks):
    """The ranks start with different weights, and end like one process with rank 0's weights.

    Two ranks with 4 samples each, in three epochs of one step, equal a process with all 8.
    """
    data, seeds = data_of(8), [11, 5]

    [seen] = train(ranks, {"epochs": 3, "batch_size": 4}, data=data, seeds=seeds)

    epochs = [[range(8)]] * 3

    def weights_after(rank, scale):
        return one_process(data, epochs, seeds[rank], lr=scale * LEARNING_RATE).weights

    right = with_its_momentum(seen, partial(one_process, data, epochs, seeds[0]))
    raise_mistake(models_differ(seen, GUIDE))
    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    headings = {"guide": GUIDE, "mean": GUIDE, "start": GUIDE}
    case = "2 ranks with 4 samples each, three epochs of one step"
    mistakes = training_mistakes(weights_after, case=case, world_size=2, **headings)
    divided = batches_divided(seen, 4, GUIDE)
    weights = each(seen, lambda value: value["weights"])
    assert_on_every_rank(weights, right.weights, mistakes=[lambda *_: divided, *mistakes])


@exercise("phase2/train", points=1)
def test_batch_size_is_the_batch_of_each_rank(ranks):
    """With batch_size=4 and 6 samples on each rank, the batches have 4 and 2 samples."""
    [seen] = train(ranks, {"epochs": 1, "batch_size": 4}, data=data_of(12))

    raise_mistake(batches_divided(seen, 4, GUIDE))
    raise_mistake(uneven_microbatches(seen, [4, 2], 1))


@exercise("phase2/train", points=1)
def test_the_history_has_the_numbers_of_each_epoch(ranks):
    """Three epochs have three entries: the mean train loss, and the results after the epoch.

    Each rank trains on batches of 4 samples and 1, and the ranks evaluate 4 and 3 samples.
    """
    data = data_of(10, known=7)

    [seen] = train(ranks, {"epochs": 3, "batch_size": 4}, data=data)

    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(other_counts(seen, 3 * 5, SAMPLER))
    epochs = steps_of([value["trained"] for value in seen], share=5, batch_size=4)
    right = with_its_momentum(seen, partial(one_process, data, epochs, 1))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    headings = {"guide": GUIDE, "evaluation": "Evaluation without padding"}
    raise_mistake(other_means(seen, right.history, 4, **headings))
    raise_mistake(other_numbers(seen, *right[1:], **headings))


@exercise("phase2/train", points=1)
def test_each_call_has_its_own_history(ranks):
    """A second call returns a list of its own epochs, without those of the first."""
    options = {"epochs": 1, "batch_size": 4}

    runs = train(ranks, options, options, data=data_of(4))

    raise_mistake(kept_from_earlier_calls(runs, GUIDE))
    check(
        all(len(value["history"]) == 1 for run in runs for value in run),
        "wrong-signature",
        "Called with epochs=1, train must return a list with one entry, on every rank.",
        guide=GUIDE,
    )


@exercise("phase2/train", points=1)
def test_only_rank_0_prints(ranks):
    """In three epochs rank 0 prints at least three lines, and rank 1 none."""
    [seen] = train(ranks, {"epochs": 3, "batch_size": 4}, data=data_of(8))

    raise_mistake(other_lines(seen, ["", ""], 3, GUIDE))


@exercise("phase2/train", points=1)
def test_microbatches_do_not_change_the_result(ranks):
    """Batches of 4 and 2 samples, split into 3 microbatches: 2, 1, 1 and 1, 1; equal weights."""
    plain = {"epochs": 2, "batch_size": 4}

    whole, seen = train(ranks, plain, {**plain, "accumulation_steps": 3}, data=data_of(12))

    raise_mistake(not_split(whole, seen, 3, batch_size=4))
    raise_mistake(models_differ(seen, GUIDE))
    case = "batches of 4 and 2 samples, each in 3 microbatches"
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        whole[0]["weights"],
        mistakes=[differs_from_one_process(STEP, case)],
    )
    losses = each(seen, lambda value: [row["train_loss"] for row in value["history"]])
    right = [row["train_loss"] for row in whole[0]["history"]]
    check(
        all(close(own, right) for own in losses),
        "microbatch-mean-unweighted",
        f"`train_loss` with 3 microbatches per batch, {listed(losses[0])} by epoch, differs from "
        "`train_loss` without them. Weight each microbatch by its samples.",
        guide=STEP,
    )
    raise_mistake(uneven_microbatches(seen, [4, 2] * 2, 3))
