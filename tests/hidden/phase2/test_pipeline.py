"""The pipeline: its stages on N ranks train like the unsplit model on the whole batch."""

import pytest
import torch
from torch import nn

from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.rules import first_diagnosis
from gradsync.testing.traffic import too_many_bytes
from gradsync.text import no_float, ranks_text
from support.probes.models import tensors_of
from support.probes.pipelines import (
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
from support.probes.returned import number_or_nan
from support.rules.pipelines import (
    diagnose_order,
    kept_on_some_ranks,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
    stages_summed,
    stepped_in_between,
)
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import differs_from_one_process, ends_with

GUIDE = "Pipelines"


def probe_trainings(rank, world_size, model_parallel, trainings, frozen, kind):
    """Train a new stage on each list of steps; return this rank's results of each training."""
    place = cuts(world_size)[rank]
    return [
        trained(model_parallel, stage_of(kind, *place, blocks), steps)
        for blocks, steps in zip(frozen, trainings[rank], strict=True)
    ]


def trained(model_parallel, stage, steps):
    """Take a step on each list of this rank's microbatches; return the rank's results."""
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
    """Run trainings in turn, each with new stages; return the observation of each."""
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
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(trainings))


def given_to(rank, world_size, steps, stray):
    """Return the steps for a rank, with `stray` instead of the data that only others may read.

    A rank that has all data of the batch could run all stages alone.
    """
    return [
        [
            (inputs if rank == 0 else stray, targets if rank == world_size - 1 else stray)
            for inputs, targets in microbatches
        ]
        for microbatches in steps
    ]


def check_gradients(seen, steps, *, cross=False, **options):
    """Compare every stage's gradients after the last step with the unsplit model's."""
    world_size = len(seen)

    def ended(**mistake):
        return by_stage(unsplit(steps, **options, **mistake)["gradients"], world_size)

    def mistaken(seen, expected):  # slow: it trains once for each known mistake
        mistakes = [(how, ended(weigh=how)) for how in ("equally", "summed", "last")]
        if cross:
            hops = [first for first, _ in cuts(world_size)[1:]]
            mistakes += [("crossed", by_stage(mispaired(steps[-1], h), world_size)) for h in hops]
        mistakes.append(("kept", ended(zeroed=0)))
        return first_diagnosis(seen, expected, pipeline_gradient_mistakes(mistakes))

    assert_rank_by_rank(each(seen, lambda kept: kept["gradients"]), ended(), mistakes=[mistaken])


@exercise("phase2/pipeline_train_step", points=1.5)
def test_gradients_are_the_unsplit_models(ranks, rng):
    """After a step, every stage's gradients equal the unsplit model's on the whole batch."""
    steps = [draw_microbatches(rng, [2, 2])]

    seen = run(ranks, 4, steps=steps)

    check_gradients(seen, steps, cross=True)


@exercise("phase2/pipeline_train_step", points=1.5)
def test_microbatches_are_weighted_by_their_samples(ranks, rng):
    """Microbatches of unequal size, or a single one, also give the gradients of the whole batch."""
    trainings = [[draw_microbatches(rng, sizes)] for sizes in ([4, 1, 2], [3])]

    seen = run_each(ranks, 2, trainings, frozen=[(), ()])

    for of_one, steps in zip(seen, trainings, strict=True):
        check_gradients(of_one, steps)


@pytest.mark.parametrize("world_size", [3, 1])
@exercise("phase2/pipeline_train_step", points=1)
def test_every_rank_returns_the_whole_batchs_loss(ranks, rng, world_size):
    """Every rank returns a float: the mean loss over all samples, before the step."""
    steps = [draw_microbatches(rng, [3, 1])]

    seen = run(ranks, world_size, steps=steps)

    [loss], [equally], [summed] = (
        unsplit(steps, weigh=how)["losses"] for how in ("samples", "equally", "summed")
    )
    types = [kept["types"][0] for kept in seen]
    known = {"float"} if types[-1] == "NoneType" else {"float", "NoneType"}
    wrong = [rank for rank, kind in enumerate(types) if kind not in known]
    returned = no_float("pipeline_train_step", [types[rank] for rank in wrong])
    check(
        not wrong,
        "wrong-signature",
        f"On {ranks_text(wrong)}, {returned}",
        ranks=wrong,
        guide=GUIDE,
    )
    returned = each(seen, lambda kept: kept["losses"][0])
    assert_on_every_rank(
        returned,
        loss,
        mistakes=pipeline_loss_mistakes(equally, summed),
    )
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=1)
def test_several_steps_equal_those_of_unsplit(ranks, rng):
    """After several steps, the stages' weights equal the unsplit model's, in both groups."""
    steps = [draw_microbatches(rng, sizes) for sizes in ([2, 3], [3, 1])]

    seen = run(ranks, 3, steps=steps)

    def ended(steps, **mistake):
        return by_stage(unsplit(steps, **mistake)["weights"], 3)

    before = ends_with(
        ended([]),
        "does-not-learn",
        "The weights did not change: the optimizer took no step, or there were no gradients.",
        GUIDE,
    )
    first = ends_with(
        ended(steps, zeroed=1),
        "gradients-not-zeroed",
        "Only the gradients of the optimizer's first parameter group are cleared. The gradients of "
        "the second group add up over the steps. Clear the gradients of all groups.",
        GUIDE,
    )
    kept = kept_on_some_ranks(ended(steps, zeroed=0))
    assert_rank_by_rank(
        each(seen, lambda kept: kept["weights"]),
        ended(steps),
        mistakes=[before, first, kept, differs_from_one_process(GUIDE, "the stages on 3 ranks")],
    )
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_only_the_ends_read_their_data(ranks, rng):
    """Only rank 0 reads the inputs, and only the last rank reads the targets."""
    steps = [draw_microbatches(rng, [2, 1])]

    stray = torch.zeros(7, dtype=torch.int64)  # not the size of any microbatch

    seen = run(ranks, 3, steps=steps, stray=stray)

    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_all_forwards_come_before_all_backwards(ranks, rng):
    """Every stage runs forward for all microbatches before it runs backward for the first."""
    steps = [draw_microbatches(rng, [2, 1, 1])]

    seen = run(ranks, 2, steps=steps)

    raise_mistake(diagnose_order([kept["order"] for kept in seen], 3))
    other = [rank for rank, kept in enumerate(seen) if not kept["trains"]]
    check(
        not other,
        "mode-not-restored",
        "pipeline_train_step switches the stages from training to evaluation mode, where dropout, "
        "for example, does nothing. Leave the mode as it is.",
        ranks=other,
        guide=GUIDE,
    )
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.5)
def test_only_activations_are_sent(ranks, rng):
    """The ranks send activations and their gradients, but no inputs and no weights."""
    steps = [draw_microbatches(rng, [4, 4], "wide")]

    seen = run(ranks, 2, steps=steps, kind="wide")

    text = (
        "That is a large part of the batch itself, or of the weights. Send only the outputs of a "
        "stage (here at most 15 numbers per sample) to the next rank, and their gradients back."
    )
    raise_mistake(too_many_bytes(seen, 8 * WIDE * 4 // 2, text, GUIDE))
    check_gradients(seen, steps, kind="wide")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_activations_of_any_shape_and_dtype(ranks, rng):
    """Inputs may be integers; activations may be float64, large, and have up to six dimensions."""
    steps = [draw_microbatches(rng, [2, 1], "words")]

    seen = run(ranks, 3, steps=steps, kind="words")

    check_gradients(seen, steps, kind="words")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_a_stage_may_be_frozen(ranks, rng):
    """If the first stage or a middle stage is frozen, the others' gradients are still correct."""
    trainings = [[draw_microbatches(rng, [2, 1])] for _ in range(2)]
    frozen = [list(range(*blocks)) for blocks in cuts(3)[:2]]

    seen = run_each(ranks, 3, trainings, frozen=frozen)

    for of_one, steps, blocks in zip(seen, trainings, frozen, strict=True):
        check_gradients(of_one, steps, frozen=blocks)
