"""The pipeline: stages on N ranks step as the unsplit model does on the whole batch."""

import pytest
import torch
from torch import nn

from gradsync.diagnose import first_diagnosis
from gradsync.diagnose.pipelines import (
    diagnose_order,
    kept_on_some_ranks,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
    stages_summed,
    stepped_in_between,
)
from gradsync.diagnose.traffic import too_many_bytes
from gradsync.diagnose.waiting import nobody_waited
from gradsync.probes.models import tensors_of
from gradsync.probes.pipelines import (
    WIDE,
    Watched,
    by_stage,
    cuts,
    draw_microbatches,
    gradients_of,
    mispaired,
    optimizer_for,
    stage_of,
    unsplit,
)
from gradsync.probes.returned import number_or_nan
from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    case_by_case,
    check,
    differs_from_one_process,
    each,
    exercise,
    hold,
    would_be,
)

GUIDE = "Pipelines"


def probe_trainings(rank, world_size, model_parallel, trainings, frozen, kind):
    """Train a stage anew on each list of steps; return all that this rank has at each end."""
    place = cuts(world_size)[rank]
    return [
        trained(model_parallel, stage_of(kind, *place, blocks), steps)
        for blocks, steps in zip(frozen, trainings[rank], strict=True)
    ]


def trained(model_parallel, stage, steps):
    """Take a step on each list of this rank's microbatches; return all that it has then."""
    optimizer = optimizer_for(stage)
    watched = Watched(stage)
    losses = []
    for microbatches in steps:
        loss_fn = nn.CrossEntropyLoss()
        losses.append(model_parallel.pipeline_train_step(watched, microbatches, loss_fn, optimizer))
    return {
        "gradients": gradients_of(stage),
        "weights": tensors_of(stage),
        "losses": [None if loss is None else number_or_nan(loss) for loss in losses],
        "types": ["float" if isinstance(x, float) else type(x).__name__ for x in losses],
        "order": watched.order,
        "trains": all(watched.modes) and watched.training,
    }


def run(ranks, world_size, steps, **options):
    [seen] = run_each(ranks, world_size, [steps], frozen=[()], **options)
    return seen


def run_each(ranks, world_size, trainings, *, frozen, stray=None, kind="vectors"):
    """Run trainings in a row, each with stages of its own; return what was seen of each."""
    given = by_rank(
        [
            [given_to(rank, world_size, steps, stray) for steps in trainings]
            for rank in range(world_size)
        ]
    )
    seen = ranks(
        probe_trainings,
        world_size,
        mistakes=[stages_summed, stepped_in_between],
        trainings=given,
        frozen=frozen,
        kind=kind,
    )
    hold(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(trainings))


def given_to(rank, world_size, steps, stray):
    """Return the steps as a rank is to have them: what only other ranks read is `stray`.

    With the batch, a rank could run all stages by itself.
    """
    return [
        [
            (inputs if rank == 0 else stray, targets if rank == world_size - 1 else stray)
            for inputs, targets in microbatches
        ]
        for microbatches in steps
    ]


def hold_gradients(seen, steps, *, cross=False, **options):
    """Hold every stage's gradients after the last step against the unsplit model's."""
    world_size = len(seen)

    def ended(**mistake):
        return by_stage(unsplit(steps, **options, **mistake)["gradients"], world_size)

    def mistaken(seen, expected):  # trains as mistakes would, which takes longer than all the rest
        mistakes = [(how, ended(weigh=how)) for how in ("equally", "summed", "last")]
        if cross:
            hops = [first for first, _ in cuts(world_size)[1:]]
            mistakes += [("crossed", by_stage(mispaired(steps[-1], h), world_size)) for h in hops]
        mistakes.append(("kept", ended(zeroed=0)))
        return first_diagnosis(seen, expected, pipeline_gradient_mistakes(mistakes))

    assert_rank_by_rank(each(seen, lambda kept: kept["gradients"]), ended(), mistakes=[mistaken])


@exercise("phase2/pipeline_train_step", points=1.5)
def test_gradients_are_the_unsplit_models(ranks, rng):
    """After a step, every stage's gradients are those of the whole model on the whole batch."""
    steps = [draw_microbatches(rng, [2, 2])]

    seen = run(ranks, 4, steps=steps)

    hold_gradients(seen, steps, cross=True)


@exercise("phase2/pipeline_train_step", points=1.5)
def test_microbatches_weigh_by_their_samples(ranks, rng):
    """Microbatches of unequal size, or only one, give the gradients of the whole batch too."""
    trainings = [[draw_microbatches(rng, sizes)] for sizes in ([4, 1, 2], [3])]

    seen = run_each(ranks, 2, trainings, frozen=[(), ()])

    for of_one, steps in zip(seen, trainings, strict=True):
        hold_gradients(of_one, steps)


@pytest.mark.parametrize("world_size", [3, 1])
@exercise("phase2/pipeline_train_step", points=1)
def test_every_rank_returns_the_whole_batchs_loss(ranks, rng, world_size):
    """A float on every rank: the mean loss over all samples, before the step."""
    steps = [draw_microbatches(rng, [3, 1])]

    seen = run(ranks, world_size, steps=steps)

    [loss], [equally], [summed] = (
        unsplit(steps, weigh=how)["losses"] for how in ("samples", "equally", "summed")
    )
    types = [kept["types"][0] for kept in seen]
    known = {"float"} if types[-1] == "NoneType" else {"float", "NoneType"}
    wrong = [rank for rank, kind in enumerate(types) if kind not in known]
    check(
        not wrong,
        "wrong-signature",
        f"pipeline_train_step returns {types} by rank: a float is wanted",
        ranks=wrong,
        guide=GUIDE,
    )
    returned = each(seen, lambda kept: kept["losses"][0])
    assert_on_every_rank(
        returned,
        loss,
        mistakes=pipeline_loss_mistakes(equally, summed),
    )
    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=1)
def test_several_steps_equal_those_of_unsplit(ranks, rng):
    """After several steps the stages have the unsplit model's weights, in both groups."""
    steps = [draw_microbatches(rng, sizes) for sizes in ([2, 3], [3, 1])]

    seen = run(ranks, 3, steps=steps)

    def ended(steps, **mistake):
        return by_stage(unsplit(steps, **mistake)["weights"], 3)

    before = would_be(
        ended([]),
        "does-not-learn",
        "the weights are those from before: the optimizer has taken no step, or had no gradients "
        "to take one with",
        GUIDE,
    )
    first = would_be(
        ended(steps, zeroed=1),
        "gradients-not-zeroed",
        "of an optimizer with two groups of parameters only the first group's gradients were "
        "cleared: the weights are those of steps with the other's of all earlier steps added in",
        GUIDE,
    )
    kept = kept_on_some_ranks(ended(steps, zeroed=0))
    assert_rank_by_rank(
        each(seen, lambda kept: kept["weights"]),
        ended(steps),
        mistakes=[before, first, kept, differs_from_one_process(GUIDE, "the stages on 3 ranks")],
    )
    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_only_the_ends_read_their_data(ranks, rng):
    """What inputs other ranks are given than rank 0, and what targets than the last, is ignored."""
    steps = [draw_microbatches(rng, [2, 1])]

    stray = torch.zeros(7, dtype=torch.int64)  # of another size than any microbatch

    seen = run(ranks, 3, steps=steps, stray=stray)

    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_all_forwards_come_before_all_backwards(ranks, rng):
    """Every stage runs forward for each microbatch, and only then backward for any."""
    steps = [draw_microbatches(rng, [2, 1, 1])]

    seen = run(ranks, 2, steps=steps)

    hold(diagnose_order([kept["order"] for kept in seen], 3))
    other = [rank for rank, kept in enumerate(seen) if not kept["trains"]]
    check(
        not other,
        "mode-not-restored",
        "the stages come in training mode, and pipeline_train_step switched them to evaluation: "
        "dropout, for one, does nothing then",
        ranks=other,
        guide=GUIDE,
    )
    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.5)
def test_activations_cross_and_not_batches(ranks, rng):
    """Between ranks go activations and their gradients: no inputs, no weights."""
    steps = [draw_microbatches(rng, [4, 4], "wide")]

    seen = run(ranks, 2, steps=steps, kind="wide")

    text = (
        "that is a large part of the batch itself, or of the weights. What a rank has to tell the "
        "next are its stage's outputs, here at most 15 numbers a sample, and what comes back are "
        "their gradients"
    )
    hold(too_many_bytes(seen, 8 * WIDE * 4 // 2, text, GUIDE))
    hold_gradients(seen, steps, kind="wide")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_stages_of_double_precision_fed_with_words(ranks, rng):
    """Rank 0 may be fed integers; activations travel as they are: float64, wide, six dimensions."""
    steps = [draw_microbatches(rng, [2, 1], "words")]

    seen = run(ranks, 3, steps=steps, kind="words")

    hold_gradients(seen, steps, kind="words")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_a_frozen_stage_is_passed_by(ranks, rng):
    """The first stage, or one in the middle, may be frozen: the others' gradients are the same."""
    trainings = [[draw_microbatches(rng, [2, 1])] for _ in range(2)]
    frozen = [list(range(*blocks)) for blocks in cuts(3)[:2]]

    seen = run_each(ranks, 3, trainings, frozen=frozen)

    for of_one, steps, blocks in zip(seen, trainings, frozen, strict=True):
        hold_gradients(of_one, steps, frozen=blocks)
