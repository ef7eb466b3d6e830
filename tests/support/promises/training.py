"""What the complete training loop promises.

`data` are the training and the validation samples: inputs (sample, 4), the first number of which
tells them apart, and targets (sample,), of 3 classes.
"""

from functools import partial

from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    case_by_case,
    check,
    each,
    raise_mistake,
)
from support.probes.training import (
    LEARNING_RATE,
    Classifier,
    one_process,
    orders_of_sampler,
    spied_training,
    steps_of,
)
from support.rules.epochs import order_of_another_epoch, other_samples
from support.rules.histories import kept_from_earlier_calls, other_numbers, other_rows
from support.rules.printing import other_lines
from support.rules.training import (
    batches_divided,
    later_steps_differ,
    models_differ,
    other_counts,
    trained_a_copy,
    training_mistakes,
    with_its_momentum,
)

GUIDE, MODEL = "Training", "Model synchronisation"


def probe_train(rank, world_size, trainer, data, seeds, **options):
    """Train on `data` from the weights of this rank's seed; report the result.

    The `orders` in the result come from the submission's own sampler.
    """
    info = trainer.RankInfo(rank, world_size, 0, "127.0.0.1", 29500)  # each on its own machine
    seen = spied_training(trainer.train, info, Classifier(seeds[rank]), data, **options)
    place = rank, world_size, len(data[0][1]), options.get("seed", 0)
    return {**seen, "orders": orders_of_sampler("PaddedDistributedSampler", *place)}


def weights_before(seed):
    """Return the weights of an untrained model with this seed."""
    return dict(Classifier(seed).state_dict())


def train_in_turn(ranks, world_size, *calls):
    """Train once with each of these options, in the same processes; return the results."""

    def probe(rank, world_size, trainer):
        return [probe_train(rank, world_size, trainer, **options) for options in calls]

    seen = ranks(probe, world_size)
    return case_by_case(seen, len(calls))


def own_share_in_order_of_epoch(ranks, data, seed):
    """Check that two ranks train on their shares, in an order that depends on epoch and seed."""
    options = {"data": data, "seeds": [1, 1], "batch_size": 4}
    twice, once = {**options, "epochs": 2, "seed": 0}, {**options, "epochs": 1}

    reseeded = ranks(probe_train, 2, seed=seed, **once)
    seen, unseeded = train_in_turn(ranks, 2, twice, once)

    headings = {"shares": "Data loaders", "epochs": "Epochs and evaluation", "guide": GUIDE}
    raise_mistake(other_samples(seen, reseeded, unseeded, samples=len(data[0][1]), **headings))
    for run in (seen, reseeded):
        raise_mistake(order_of_another_epoch(run, headings["epochs"]))
    raise_mistake(kept_from_earlier_calls([seen, unseeded], GUIDE))


def weights_of_one_process(ranks, data, seeds):
    """Check the weights after three epochs of one step; rank r begins with those of `seeds[r]`."""
    world_size, samples = len(seeds), len(data[0][1])
    share = samples // world_size

    options = {"seeds": by_rank(seeds), "epochs": 3, "batch_size": share}
    seen = ranks(probe_train, world_size, data=data, **options)

    epochs = [[range(samples)]] * 3

    def weights_after(rank, scale):
        return one_process(data, epochs, seeds[rank], lr=scale * LEARNING_RATE).weights

    right = with_its_momentum(seen, partial(one_process, data, epochs, seeds[0]))
    raise_mistake(trained_a_copy(seen, [weights_before(seed) for seed in seeds], GUIDE))
    raise_mistake(models_differ(seen, MODEL))
    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        right.weights,
        mistakes=[
            lambda *_: batches_divided(seen, share, "Data loaders"),
            *training_mistakes(
                weights_after,
                case=f"{world_size} ranks with {share} samples each, three epochs of one step",
                world_size=world_size,
                guide=GUIDE,
                mean="Gradient aggregation",
                start=MODEL,
            ),
        ],
    )


def numbers_of_each_epoch(ranks, data):
    """Check the history of two ranks with 5 samples each: in each epoch, batches of 4 and of 1."""
    seen = ranks(probe_train, 2, data=data, seeds=[11, 11], epochs=3, batch_size=4)

    raise_mistake(trained_a_copy(seen, [weights_before(11)] * 2, GUIDE))
    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(other_counts(seen, 3 * 5, GUIDE))
    epochs = steps_of([value["trained"] for value in seen], share=5, batch_size=4)
    right = with_its_momentum(seen, partial(one_process, data, epochs, 11))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    headings = {"guide": GUIDE, "evaluation": GUIDE}
    raise_mistake(other_numbers(seen, *right[1:], **headings))


def only_rank_0_prints(ranks, data, world_size):
    """Check that rank 0 prints a line for each epoch, and the other ranks print nothing."""
    options = {"seeds": [1] * world_size, "epochs": 3, "batch_size": 4}
    seen = ranks(probe_train, world_size, data=data, **options)

    check(
        any(value["trained"] or value["strange"] for value in seen),
        "does-not-learn",
        "train returned without training the model on a single sample.",
        guide=GUIDE,
    )
    raise_mistake(other_lines(seen, seen.output, 3, GUIDE))
