"""Train a model in stages by one of the course's pipeline steps, and check it against one process.

`step` is the name of the function: the tests of each pipeline exercise run the same trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradsync.records import Observation
from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    case_by_case,
    check,
    each,
    raise_mistake,
)
from gradsync.testing.rules import first_diagnosis
from gradsync.testing.traffic import too_many_bytes
from gradsync.text import no_float, ranks_text
from support.probes.models import tensors_of
from support.probes.pipelines import (
    WIDE,
    Kind,
    Microbatches,
    Watched,
    by_stage,
    count_steps,
    cuts,
    gradients_of,
    optimizer_for,
    stage_of,
    unsplit,
)
from support.probes.returned import number_or_nan
from support.rules.pipelines import (
    GUIDE,
    idle_stages,
    kept_on_some_ranks,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
    stages_summed,
    stepped_too_often,
)
from support.rules.waiting import everyone_sends, nobody_waited
from support.rules.wrong_results import differs_from_one_process, ends_with

Steps = Sequence[Microbatches]


def probe_trainings(
    rank: int,
    world_size: int,
    model_parallel: Any,
    step: str,
    trainings: Sequence[Sequence[Any]],
    frozen: Sequence[Sequence[int]],
    kind: Kind,
    training: bool,
) -> list[dict[str, Any]]:
    """Train a new stage on each list of steps; return this rank's results of each training."""
    place = cuts(world_size)[rank]
    return [
        _trained(getattr(model_parallel, step), stage_of(kind, *place, blocks), steps, training)
        for blocks, steps in zip(frozen, trainings[rank], strict=True)
    ]


def _trained(
    step: Callable[..., Any], stage: nn.Module, steps: Sequence[Any], training: bool
) -> dict[str, Any]:
    """Take a step on each list of this rank's microbatches; return the rank's results."""
    optimizer = optimizer_for(stage)
    watched = Watched(stage).train(training)
    taken = count_steps(optimizer)
    losses = [step(watched, given, nn.CrossEntropyLoss(), optimizer) for given in steps]
    return {
        "gradients": gradients_of(stage),
        "weights": tensors_of(stage),
        "losses": [None if loss is None else number_or_nan(loss) for loss in losses],
        "types": ["float" if isinstance(x, float) else type(x).__name__ for x in losses],
        "steps": len(taken),
        "order": watched.order,
        "backwards": watched.backwards,
        "alive": watched.alive,
        "graphs": watched.graphs,
        "modes": [*watched.modes, watched.training],
    }


def run(ranks: Any, step: str, world_size: int, steps: Steps, **options: Any) -> Observation:
    """Run one training; see `run_each`."""
    [seen] = run_each(ranks, step, world_size, [steps], **options)
    return seen


def run_each(
    ranks: Any,
    step: str,
    world_size: int,
    trainings: Sequence[Steps],
    *,
    frozen: Sequence[Sequence[int]] | None = None,
    stray: Tensor | None = None,
    kind: Kind = "vectors",
    training: bool = True,
) -> list[Observation]:
    """Run trainings in turn, each with new stages in this mode; return the observation of each."""
    given = by_rank(
        [
            [_given_to(rank, world_size, steps, stray) for steps in trainings]
            for rank in range(world_size)
        ]
    )
    seen = ranks(
        probe_trainings,
        world_size,
        mistakes=[everyone_sends(GUIDE), stages_summed],
        step=step,
        trainings=given,
        frozen=frozen or [()] * len(trainings),
        kind=kind,
        training=training,
    )
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(trainings))


def _given_to(rank: int, world_size: int, steps: Steps, stray: Tensor | None) -> list[Any]:
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


def check_gradients(seen: Observation, steps: Steps, **options: Any) -> None:
    """Compare every stage's gradients after the last step with the unsplit model's."""
    world_size = len(seen)
    backwards = [kept["backwards"] for kept in seen]

    def ended(**mistake: Any) -> list[Any]:
        return by_stage(unsplit(steps, **options, **mistake)["gradients"], world_size)

    def mistaken(seen: Observation, expected: Any) -> Any:  # slow: it trains once for each mistake
        mistakes = [(how, ended(weigh=how)) for how in ("equally", "summed", "last")]
        mistakes.append(("kept", ended(zeroed=0)))
        return first_diagnosis(seen, expected, pipeline_gradient_mistakes(mistakes, backwards))

    often = stepped_too_often([kept["steps"] for kept in seen], len(steps))
    gradients = each(seen, lambda kept: kept["gradients"])
    assert_rank_by_rank(gradients, ended(), mistakes=[often, mistaken])


def check_losses(seen: Observation, steps: Steps, step: str) -> None:
    """Check that every rank returns the mean loss of the first step's batch, as a float."""
    [loss], [equally], [summed] = (
        unsplit(steps[:1], weigh=how)["losses"] for how in ("samples", "equally", "summed")
    )
    types = [kept["types"][0] for kept in seen]
    known = {"float"} if types[-1] == "NoneType" else {"float", "NoneType"}
    wrong = [rank for rank, kind in enumerate(types) if kind not in known]
    returned = no_float(step, [types[rank] for rank in wrong])
    check(
        not wrong,
        "wrong-signature",
        f"On {ranks_text(wrong)}, {returned}",
        ranks=wrong,
        guide=GUIDE,
    )
    losses = each(seen, lambda kept: kept["losses"][0])
    assert_on_every_rank(losses, loss, mistakes=pipeline_loss_mistakes(equally, summed))


def check_weights(seen: Observation, steps: Steps) -> None:
    """Compare every stage's weights after the steps with the unsplit model's."""
    world_size = len(seen)

    def ended(steps: Steps, **mistake: Any) -> list[Any]:
        return by_stage(unsplit(steps, **mistake)["weights"], world_size)

    first = ends_with(
        ended(steps, zeroed=1),
        "gradients-not-zeroed",
        "Only the gradients of the optimizer's first parameter group are cleared. The gradients of "
        "the second group add up over the steps. Clear the gradients of all groups.",
        GUIDE,
    )
    kept = kept_on_some_ranks(ended(steps, zeroed=0))
    often = stepped_too_often([kept["steps"] for kept in seen], len(steps))
    other = differs_from_one_process(GUIDE, f"the stages on {world_size} ranks")
    assert_rank_by_rank(
        each(seen, lambda kept: kept["weights"]),
        ended(steps),
        mistakes=[often, idle_stages(ended([])), first, kept, other],
    )


def check_modes(seen: Observation, step: str, training: bool = True) -> None:
    """Check that the stages ran in the mode in which they were, and are in it afterwards."""
    other = [rank for rank, kept in enumerate(seen) if {*kept["modes"]} != {training}]
    before, after = ("training", "evaluation")[:: 1 if training else -1]
    check(
        not other,
        "mode-not-restored",
        f"{step} switches the stages from {before} to {after} mode, which changes dropout, for "
        "example. Leave the mode as it is.",
        ranks=other,
        guide=GUIDE,
    )


def check_bytes(seen: Observation) -> None:
    """Check that no rank sent a large part of a batch of 8 wide inputs."""
    text = (
        "That is a large part of the batch itself, or of the weights. Send only the outputs of a "
        "stage (here at most 15 numbers per sample) to the next rank, and their gradients back."
    )
    raise_mistake(too_many_bytes(seen, 8 * WIDE * 4 // 2, text, GUIDE))


STRAY = torch.zeros(7, dtype=torch.int64)  # not the size of any microbatch
