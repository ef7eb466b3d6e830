"""The complete training loop."""

from functools import partial

from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
)
from support.probes.training import (
    LEARNING_RATE,
    Classifier,
    draw_samples,
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


@exercise("phase1/train", points=2)
def test_each_rank_trains_on_its_share_in_the_order_of_the_epoch(ranks, rng):
    """Each rank trains on its share, in an order that depends on the epoch and the seed."""
    data = draw_samples(rng, 41), draw_samples(rng, 4)
    options = {"data": data, "seeds": [1, 1], "batch_size": 4}
    twice, once = {**options, "epochs": 2, "seed": 0}, {**options, "epochs": 1}

    reseeded = ranks(probe_train, 2, seed=4, **once)
    seen, unseeded = train_in_turn(ranks, 2, twice, once)

    headings = {"shares": "Data loaders", "epochs": "Epochs and evaluation", "guide": GUIDE}
    raise_mistake(other_samples(seen, reseeded, unseeded, samples=41, **headings))
    for run in (seen, reseeded):
        raise_mistake(order_of_another_epoch(run, headings["epochs"]))
    raise_mistake(kept_from_earlier_calls([seen, unseeded], GUIDE))


@exercise("phase1/train", points=2)
def test_the_weights_equal_those_of_one_process(ranks, rng):
    """All ranks start from rank 0's weights, and end with the weights of one process."""
    data, seeds = (draw_samples(rng, 12), draw_samples(rng, 6)), [11, 5, 6]

    seen = ranks(probe_train, 3, data=data, seeds=by_rank(seeds), epochs=3, batch_size=4)

    epochs = [[range(12)]] * 3

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
            lambda *_: batches_divided(seen, 4, "Data loaders"),
            *training_mistakes(
                weights_after,
                case="3 ranks with 4 samples each, three epochs of one step",
                world_size=3,
                guide=GUIDE,
                mean="Gradient aggregation",
                start=MODEL,
            ),
        ],
    )


@exercise("phase1/train", points=2)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """The history has an entry for each epoch: the mean train loss and the validation results."""
    data = draw_samples(rng, 10), draw_samples(rng, 6)  # 5 for each rank: batches of 4 and of 1

    seen = ranks(probe_train, 2, data=data, seeds=[11, 11], epochs=3, batch_size=4)

    raise_mistake(trained_a_copy(seen, [weights_before(11)] * 2, GUIDE))
    raise_mistake(other_rows(seen, GUIDE))
    raise_mistake(other_counts(seen, 3 * 5, GUIDE))
    epochs = steps_of([value["trained"] for value in seen], share=5, batch_size=4)
    right = with_its_momentum(seen, partial(one_process, data, epochs, 11))
    raise_mistake(later_steps_differ(seen, right.weights, right.history, GUIDE))
    headings = {"guide": GUIDE, "evaluation": GUIDE}
    raise_mistake(other_numbers(seen, *right[1:], **headings))


@exercise("phase1/train", points=1)
def test_only_rank_0_prints(ranks, rng):
    """Rank 0 prints a line for each epoch, and the other ranks print nothing."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)

    seen = ranks(probe_train, 3, data=data, seeds=[1, 1, 1], epochs=3, batch_size=4)

    check(
        any(value["trained"] for value in seen),
        "does-not-learn",
        "train returned without training the model on a single sample.",
        guide=GUIDE,
    )
    raise_mistake(other_lines(seen, seen.output, 3, GUIDE))
