"""Small trainings of a pipeline: each stage multiplies by one weight, so you can check on paper.

`step` is the name of the function that takes a step, as in `support.pipeline_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradsync.records import Diagnosis, Observation
from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    case_by_case,
    check,
    each,
    raise_mistake,
)
from gradsync.testing.rules import Rule
from gradsync.text import full_stop, no_float
from support.probes.pipelines import Watched, count_steps
from support.probes.returned import number_or_nan
from support.rules.pipelines import (
    GUIDE,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
    stages_summed,
    stepped_too_often,
)
from support.rules.waiting import everyone_sends, nobody_waited

INPUTS, TARGETS = [1.0, 1.0, 2.0], [5.0, 5.0, 10.0]  # of three samples
RATE = 0.125


class Times(nn.Module):
    """Multiplies the mean of each sample by one weight."""

    def __init__(
        self, weight: float, shape: Sequence[int], repeated: int = 1, *, integers: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.shape = shape  # of a sample's output
        self.repeated = repeated  # views of the output's last dimension, which are not contiguous
        self.integers = integers  # whether the output has the dtype int64

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = (inputs * self.weight).flatten(1).mean(1).reshape(-1, *self.shape)
        outputs = outputs.long() if self.integers else outputs
        return outputs if self.repeated == 1 else outputs.expand(-1, self.repeated)


def probe_cases(rank: int, world_size: int, model_parallel: Any, cases: Sequence[Any]) -> list[Any]:
    """Return the result of `take_steps` for each case."""
    return [take_steps(rank, world_size, model_parallel, case) for case in cases]


def take_steps(rank: int, world_size: int, model_parallel: Any, case: Any) -> dict[str, Any]:
    """Take steps with a stage on each rank, which multiplies by a weight.

    `step` is the name of the function, `weights` are those of the stages, `sizes` the numbers of
    samples of the microbatches, `between` the shape of a sample's activations, which may be
    `repeated`, `stray` what a rank gets instead of data that it may not read, `frozen` the ranks
    whose stages are frozen, `integers` the ranks whose stages return integers, and `training` the
    mode of all stages.
    """
    last = rank == world_size - 1
    dtype = getattr(torch, case.get("dtype", "float32"))
    shape = ((), 1) if last else (case.get("between", (1,)), case.get("repeated", 1))
    integers = rank in case.get("integers", ())
    stage = Times(case["weights"][rank], *shape, integers=integers).to(dtype)
    stage.requires_grad_(rank not in case.get("frozen", ()))
    watched = Watched(stage).train(case.get("training", True))
    targets = torch.tensor(case["targets"]).to(dtype)
    inputs = torch.tensor(case["samples"]).to(getattr(torch, case.get("inputs", "float32")))[
        :, None
    ]
    inputs = inputs.expand(-1, case.get("width", 1))
    parts = (
        torch.split(inputs, case["sizes"]),
        torch.split(targets, case["sizes"]),
    )
    stray = torch.zeros(7, dtype=torch.int64) if case.get("stray") else None
    microbatches = [
        (x if rank == 0 else stray, y if last else stray) for x, y in zip(*parts, strict=True)
    ]
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)
    taken = count_steps(optimizer)
    losses, loss_fn = [], nn.MSELoss()
    for _ in range(case.get("steps", 1)):
        watched.order.clear()
        step = getattr(model_parallel, case["step"])
        losses.append(step(watched, microbatches, loss_fn, optimizer))
    return {
        "loss": number_or_nan(losses[0]) if losses[0] is not None else None,
        "kind": "float" if isinstance(losses[0], float) else type(losses[0]).__name__,
        "gradient": {} if rank in case.get("frozen", ()) else {"weight": stage.weight.grad},
        "weight": stage.weight.item(),
        "steps": len(taken) // case.get("steps", 1),
        "order": watched.order,
        "backwards": watched.backwards,
        "alive": watched.alive,
        "graphs": watched.graphs,
        "modes": [*watched.modes, watched.training],
    }


def raised_because(advice: str, phrase: str = "") -> Rule:
    """Return the rule that adds advice to an exception, if it has this phrase in its message."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is None or failure.status != "error" or phrase not in (failure.detail or ""):
            return None
        text = f"{full_stop(failure.diagnosis.explanation)} {advice}"
        return replace(failure.diagnosis, explanation=text, guide=GUIDE)

    return rule


read_stray_data = raised_because(
    "In this test the microbatches contain other tensors where a rank must not read them: only "
    "rank 0 reads the inputs, and only the last rank the targets. Decide by the rank, not by "
    "whether they are None."
)
no_graph = raised_because(
    "In this test a stage is frozen. If all stages before it are frozen or missing, its outputs "
    "have no graph, and backward must not run there.",
    phrase="does not require grad",
)
of_integers = raised_because(
    "In this test a frozen stage returns integers. They have no gradient, so the next stage must "
    "not ask for one: see `is_floating_point()`.",
    phrase="can require gradients",
)
other_size = raised_because(
    "The microbatches may differ in size. Receive each activation and each gradient into a tensor "
    "of its own shape: the sender describes it, for every microbatch.",
    phrase="Mismatch in shape",
)


def run_each(
    ranks: Any, *cases: Any, step: str, weights: Sequence[float] = (2.0, 3.0)
) -> list[Observation]:
    """Take steps in each case, by default with the stages 2 and 3; return each observation.

    By default, the microbatches have two samples and one.
    """
    usual = {"step": step, "weights": list(weights), "sizes": [2, 1]}
    usual |= {"samples": INPUTS, "targets": TARGETS}
    stray = [read_stray_data] * any("stray" in case for case in cases)
    rules = [everyone_sends(GUIDE), stages_summed, no_graph, of_integers, other_size, *stray]
    given = [{**usual, **case} for case in cases]
    seen = ranks(probe_cases, len(weights), cases=given, mistakes=rules)
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(cases))


def run(
    ranks: Any, *, step: str, weights: Sequence[float] = (2.0, 3.0), **case: Any
) -> Observation:
    """Take steps in one case; see `run_each`."""
    [seen] = run_each(ranks, case, step=step, weights=weights)
    return seen


def check_gradients(
    seen: Observation, *expected: float | None, wrong: Sequence[tuple[str, Sequence[float]]] = ()
) -> None:
    """Compare each stage's gradient with a number; None: the stage is frozen."""

    def of_stages(numbers: Sequence[float | None]) -> list[dict[str, Tensor]]:
        return [{} if n is None else {"weight": torch.tensor(n)} for n in numbers]

    gradients = each(seen, lambda kept: kept["gradient"])
    backwards = [kept["backwards"] for kept in seen]
    mistakes = pipeline_gradient_mistakes([(how, of_stages(of)) for how, of in wrong], backwards)
    often = stepped_too_often([kept["steps"] for kept in seen], 1)
    assert_rank_by_rank(gradients, of_stages(expected), mistakes=[often, *mistakes])


def check_loss(seen: Observation, step: str) -> None:
    """Check that every rank returns 2.0, the mean loss of the default batch, as a float."""
    losses = each(seen, lambda kept: kept["loss"])
    kinds = [kept["kind"] for kept in seen]
    known = {"float"} if kinds[-1] == "NoneType" else {"float", "NoneType"}
    wrong = [rank for rank, kind in enumerate(kinds) if kind not in known]
    returned = no_float(step, [kinds[rank] for rank in wrong])
    check(not wrong, "wrong-signature", returned, ranks=wrong, guide=GUIDE)
    assert_on_every_rank(losses, 2.0, mistakes=pipeline_loss_mistakes(equally=2.5, summed=5.0))
