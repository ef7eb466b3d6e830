"""What the complete training loop promises, in both phases.

`data` are the training and the validation samples: inputs (sample, 4), the first number of which
tells them apart, and targets (sample,), of 3 classes. `phase` is PHASE1 or PHASE2.
"""

from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    case_by_case,
    check,
    each,
    raise_mistake,
)
from gradsync.testing.values import close
from gradsync.text import listed
from support.probes import Info
from support.probes.training import Case, Classifier, orders_of_sampler, spied_training
from support.rules.accumulation import not_split, uneven_microbatches
from support.rules.epochs import order_of_another_epoch, other_samples, trained_on_others
from support.rules.histories import kept_from_earlier_calls, other_rows
from support.rules.one_process import (
    PHASE1,
    PHASE2,
    other_history,
    other_sizes,
    other_training,
)
from support.rules.printing import other_lines
from support.rules.training import (
    models_differ,
    other_counts,
    trained_a_copy,
    trained_in_evaluation_mode,
)
from support.rules.wrong_results import differs_from_one_process

SAMPLERS = {PHASE1: "PaddedDistributedSampler", PHASE2: "ResumableDistributedSampler"}


def probe_train(rank, world_size, trainer, sampler, data, seeds, evaluating=False, **options):
    """Train on `data` from the weights of this rank's seed; report the result.

    If `evaluating`, the model starts in evaluation mode. The `orders` in the result come from the
    submission's own sampler.
    """
    info, model = Info(rank, world_size), Classifier(seeds[rank]).train(not evaluating)
    seen = spied_training(trainer.train, info, model, data, **options)
    place = rank, world_size, len(data[0][1]), options.get("seed", 0)
    return {**seen, "orders": orders_of_sampler(sampler, *place)}


def train_in_turn(ranks, phase, world_size, *calls):
    """Train once with each of these options, in the same processes; return the results."""

    def probe(rank, world_size, trainer, sampler):
        return [probe_train(rank, world_size, trainer, sampler, **options) for options in calls]

    seen = ranks(probe, world_size, sampler=SAMPLERS[phase])
    return case_by_case(seen, len(calls))


def train_as(ranks, phase, case):
    """Train as in this case; return the result."""
    inputs = {"seeds": by_rank(case.seeds), "data": case.data, "sampler": SAMPLERS[phase]}
    options = {"epochs": case.epochs, "batch_size": case.batch_size}
    return ranks(probe_train, len(case.seeds), **inputs, **options)


def own_share_in_order_of_epoch(ranks, phase, data, seed, batch_size=4):
    """Check that two ranks train on their shares, in an order that depends on epoch and seed."""
    options = {"data": data, "seeds": [1, 1], "batch_size": batch_size}
    twice, once = {**options, "epochs": 2, "seed": 0}, {**options, "epochs": 1}

    [reseeded] = train_in_turn(ranks, phase, 2, {**once, "seed": seed})
    seen, unseeded = train_in_turn(ranks, phase, 2, twice, once)

    headings = {"shares": phase.shares, "epochs": phase.epochs, "guide": phase.training}
    raise_mistake(other_samples(seen, reseeded, unseeded, samples=len(data[0][1]), **headings))
    for run in (seen, reseeded):
        raise_mistake(order_of_another_epoch(run, phase.epochs))
    raise_mistake(kept_from_earlier_calls([seen, unseeded], phase.training))


def in_training_mode(ranks, phase, data):
    """Check that two ranks switch a model that is in evaluation mode to training mode."""
    options = {"data": data, "seeds": [1, 1], "epochs": 2, "batch_size": 4}

    [seen] = train_in_turn(ranks, phase, 2, {**options, "evaluating": True})

    raise_mistake(trained_in_evaluation_mode(seen, phase.training))
    raise_mistake(other_counts(seen, 2 * -(-len(data[0][1]) // 2), phase.shares))


def weights_of_one_process(ranks, phase, data, seeds):
    """Check the steps of three epochs of one step; rank r begins with the weights of `seeds[r]`."""
    case = Case(data, seeds, epochs=3, batch_size=len(data[0][1]) // len(seeds))

    seen = train_as(ranks, phase, case)

    raise_mistake(trained_on_others(seen, phase.shares))
    raise_mistake(other_counts(seen, 3 * case.share, phase.shares))
    raise_mistake(other_training(seen, case, phase))


def numbers_of_each_epoch(ranks, phase, data):
    """Check the history of two ranks with 5 samples each: in each epoch, batches of 4 and of 1."""
    case = Case(data, [11, 11], epochs=3, batch_size=4)

    seen = train_as(ranks, phase, case)

    raise_mistake(trained_a_copy(seen, [case.before(rank) for rank in case.ranks], phase.training))
    raise_mistake(other_rows(seen, phase.training))
    raise_mistake(other_counts(seen, 3 * 5, phase.shares))
    raise_mistake(other_sizes(seen, case, phase))
    raise_mistake(other_history(seen, case, phase))


def only_rank_0_prints(ranks, phase, data, world_size):
    """Check that rank 0 prints a line for each epoch, and the other ranks print nothing."""
    seen = train_as(ranks, phase, Case(data, [1] * world_size, epochs=3, batch_size=4))

    check(
        any(value["trained"] or value["strange"] for value in seen),
        "does-not-learn",
        "train returned without training the model on a single sample.",
        guide=phase.training,
    )
    raise_mistake(other_lines(seen, seen.output, 3, phase.training))


def microbatches_do_not_change_the_result(ranks, data, world_size, parts):
    """Check two epochs of batches of 4 and 2 samples, each split into microbatches."""
    guide = "Gradient accumulation"
    options = {"data": data, "seeds": [11, 11], "epochs": 2, "batch_size": 4}

    in_parts = {**options, "accumulation_steps": parts}
    plain, seen = train_in_turn(ranks, PHASE2, world_size, options, in_parts)

    raise_mistake(not_split(plain, seen, parts, batch_size=4))
    raise_mistake(uneven_microbatches(seen, [4, 2] * 2, parts))
    raise_mistake(models_differ(seen, PHASE2.start))
    case = f"batches of 4 and 2 samples, each in {parts} microbatches"
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        plain[0]["weights"],
        mistakes=[differs_from_one_process(guide, case)],
    )
    losses = each(seen, lambda value: [row["train_loss"] for row in value["history"]])
    right = [row["train_loss"] for row in plain[0]["history"]]
    check(
        all(close(own, right) for own in losses),
        "microbatch-mean-unweighted",
        f"`train_loss` with {parts} microbatches per batch, {listed(losses[0])} by epoch, differs "
        "from `train_loss` without them. Weight each microbatch by its samples.",
        guide=guide,
    )
