"""Training without interruption: as in phase 1, and with microbatches."""

from functools import partial

import pytest

from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
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

SAMPLER, STEP, GUIDE = "Resumable shares", "Gradient accumulation", "Resuming"


def probe_train(rank, world_size, trainer, data, seeds, evaluating=False, **options):
    """Train a model on `data`, with this rank's seed; return a description of the training run.

    If `evaluating`, the model starts in evaluation mode. The `orders` in the result come from the
    submission's own sampler.
    """
    info, model = Info(rank, world_size), Classifier(seeds[rank]).train(not evaluating)
    seen = spied_training(trainer.train, info, model, data, **options)
    place = rank, world_size, len(data[0][1]), options.get("seed", 0)
    return {**seen, "orders": orders_of_sampler("ResumableDistributedSampler", *place)}


def train_in_turn(ranks, world_size, *calls):
    """Train once for each of these options, in the same processes; return each observation."""

    def probe(rank, world_size, trainer):
        return [probe_train(rank, world_size, trainer, **options) for options in calls]

    runs = case_by_case(ranks(probe, world_size), len(calls))
    raise_mistake(kept_from_earlier_calls(runs, GUIDE))
    return runs


@exercise("phase2/train", points=0.75)
def test_every_epoch_uses_the_ranks_shares_in_a_new_order(ranks, rng):
    """Each rank trains in training mode on its share, in a new order for each epoch and seed."""
    data = draw_samples(rng, 41), draw_samples(rng, 4)
    # The last batch has 5 samples; the model starts in evaluation mode.
    options = {"data": data, "seeds": [1, 1], "batch_size": 16, "evaluating": True}
    twice, once = {**options, "epochs": 2, "seed": 0}, {**options, "epochs": 1}

    seen, reseeded, unseeded = train_in_turn(ranks, 2, twice, {**once, "seed": 4}, once)

    headings = {"shares": SAMPLER, "epochs": SAMPLER, "guide": GUIDE}
    raise_mistake(trained_in_evaluation_mode(seen, GUIDE))
    raise_mistake(other_samples(seen, reseeded, unseeded, samples=41, **headings))
    for run in (seen, reseeded):
        raise_mistake(order_of_another_epoch(run, SAMPLER))


@exercise("phase2/train", points=0.75)
def test_ranks_with_different_weights_train_like_one_process(ranks, rng):
    """Training starts with rank 0's weights, and its final weights equal those of one process."""
    data, seeds = (draw_samples(rng, 12), draw_samples(rng, 6)), [11, 5, 6]

    seen = ranks(probe_train, 3, data=data, seeds=by_rank(seeds), epochs=3, batch_size=4)

    epochs = [[range(12)]] * 3

    def weights_after(rank, scale):
        return one_process(data, epochs, seeds[rank], lr=scale * LEARNING_RATE).weights

    right = with_its_momentum(seen, partial(one_process, data, epochs, seeds[0]))
    raise_mistake(models_differ(seen, GUIDE))
    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        right.weights,
        mistakes=[
            lambda *_: batches_divided(seen, 4, GUIDE),
            *training_mistakes(
                weights_after,
                case="3 ranks with 4 samples each, three epochs of one step",
                world_size=3,
                guide=GUIDE,
                mean=GUIDE,
                start=GUIDE,
            ),
        ],
    )


@exercise("phase2/train", points=0.75)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """Each epoch has an entry: its mean train loss, and the validation results at its end."""
    # Training: 5 samples per rank, in batches of 4 and 1. Validation: 4 and 3 samples.
    data = draw_samples(rng, 10), draw_samples(rng, 7)

    seen = ranks(probe_train, 2, data=data, seeds=[11, 11], epochs=3, batch_size=4)

    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(other_counts(seen, 3 * 5, SAMPLER))
    epochs = steps_of([value["trained"] for value in seen], share=5, batch_size=4)
    right = with_its_momentum(seen, partial(one_process, data, epochs, 11))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    headings = {"guide": GUIDE, "evaluation": "Evaluation without padding"}
    raise_mistake(other_means(seen, right.history, 4, **headings))
    raise_mistake(other_numbers(seen, *right[1:], **headings))


@exercise("phase2/train", points=0.25)
def test_only_rank_0_prints(ranks, rng):
    """Rank 0 prints a line for each epoch, and the other ranks print nothing."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)

    seen = ranks(probe_train, 2, data=data, seeds=[1, 1], epochs=3, batch_size=4)

    raise_mistake(other_lines(seen, seen.output, 3, GUIDE))


@pytest.mark.parametrize(("world_size", "parts"), [(2, 3), (1, 4)])
@exercise("phase2/train", points=1)
def test_microbatches_do_not_change_the_result(ranks, rng, world_size, parts):
    """Training with accumulation_steps uses microbatches, and ends with the same weights."""
    data = draw_samples(rng, 6 * world_size), draw_samples(rng, 4)  # in batches of 4 and 2
    options = {"data": data, "seeds": [11, 11], "epochs": 2, "batch_size": 4}

    in_parts = {**options, "accumulation_steps": parts}
    plain, seen = train_in_turn(ranks, world_size, options, in_parts)

    raise_mistake(not_split(plain, seen, parts, batch_size=4))
    raise_mistake(models_differ(seen, GUIDE))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        plain[0]["weights"],
        mistakes=[
            differs_from_one_process(
                STEP, f"batches of 4 and 2 samples, each in {parts} microbatches"
            )
        ],
    )
    losses = each(seen, lambda value: [row["train_loss"] for row in value["history"]])
    right = [row["train_loss"] for row in plain[0]["history"]]
    check(
        all(close(own, right) for own in losses),
        "microbatch-mean-unweighted",
        f"`train_loss` with {parts} microbatches per batch, {listed(losses[0])} by epoch, differs "
        "from `train_loss` without them. Weight each microbatch by its samples.",
        guide=STEP,
    )
    # Each of 2 epochs has a batch of 4 samples and one of 2.
    raise_mistake(uneven_microbatches(seen, [4, 2] * 2, parts))
