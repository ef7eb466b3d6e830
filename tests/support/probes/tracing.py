"""What `gradsync trace` runs: a few steps of a trainer, or one step of a pipeline."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from support.probes import Info

STEPS = 4  # of a training: enough to show a pattern, few enough to be readable
BATCH = 50  # samples on each rank
SEQUENCES, LENGTH = 4, 128  # of a batch of tokens on each rank
MICROBATCHES = 8
FORWARD, BACKWARD = 0.03, 0.06  # seconds of a stage's passes: long beside the time of a message
PIPELINES = {"phase2": "pipeline_train_step", "phase3": "pipeline_1f1b"}


@dataclass(frozen=True)
class Traced:
    """A function that each rank runs, and its inputs."""

    run: Callable[..., Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    steps: int = 0  # that can be told apart in the trace


def training_of(phase: str, world_size: int) -> Traced:
    """Return a few steps of the phase's `train`."""
    if phase == "phase3":
        return Traced(train_transformer, steps=STEPS)
    from gradsync.data import digits

    some = digits().train.first(STEPS * BATCH * world_size)
    data = {"images": some.images.numpy(), "labels": some.labels.numpy()}
    return Traced(train_on_digits, data, STEPS)


def pipeline_of(phase: str) -> Traced | None:
    """Return one step of the phase's pipeline, or None if it has none.

    On each rank it returns the stage's passes: (kind, microbatch, start, end), in seconds.
    """
    return Traced(run_pipeline, {"step": PIPELINES[phase]}) if phase in PIPELINES else None


def train_on_digits(rank: int, world_size: int, trainer: Any, images: Any, labels: Any) -> None:
    """Train the small CNN for one short epoch; each rank calls this."""
    from torch.utils.data import Subset, TensorDataset

    from gradsync.model import SmallCNN

    known = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    few = Subset(known, range(world_size))
    trainer.train(
        Info(rank, world_size), SmallCNN(), known, few, epochs=1, batch_size=BATCH, lr=0.1
    )


def train_transformer(rank: int, world_size: int, trainer: Any) -> None:
    """Train the phase's transformer for a few steps on tokens that are drawn."""
    given = importlib.import_module("model")  # of the phase's folder
    tokens = torch.randint(
        256,
        (STEPS * SEQUENCES * world_size, LENGTH + 1),
        generator=torch.Generator().manual_seed(0),
    )
    model = given.Transformer(layers=1)
    trainer.train(
        Info(rank, world_size), model, tokens, steps=STEPS, batch_size=SEQUENCES, lr=0.002
    )


def run_pipeline(
    rank: int, world_size: int, model_parallel: Any, step: str
) -> list[tuple[str, int, float, float]]:
    """Take two steps of a pipeline whose passes take a fixed time; return the passes of the second.

    In the first one, torch also imports modules.
    """
    stage = TimedStage()
    ends = (0, world_size - 1)  # the ranks that read the inputs and the targets
    inputs, targets = (torch.zeros(2, TimedStage.WIDTH) if rank == end else None for end in ends)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    microbatches = [(inputs, targets)] * MICROBATCHES
    for _ in range(2):
        stage.passes, stage.begun = [], 0
        getattr(model_parallel, step)(stage, microbatches, nn.functional.mse_loss, optimizer)
    return stage.passes


class TimedStage(nn.Module):
    """A stage whose forward and backward only take time, as if a GPU computed them."""

    WIDTH = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(self.WIDTH, self.WIDTH)
        self.passes: list[tuple[str, int, float, float]] = []
        self.begun = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.begun += 1
        outputs: Tensor = _Timed.apply(self.layer(inputs), self, self.begun)  # type: ignore[no-untyped-call]
        return outputs

    def spend(self, kind: str, microbatch: int, seconds: float) -> None:
        start = time.monotonic()
        time.sleep(seconds)
        self.passes.append((kind, microbatch, start, time.monotonic()))


class _Timed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, stage: TimedStage, microbatch: int) -> Tensor:
        ctx.stage, ctx.microbatch = stage, microbatch
        stage.spend("forward", microbatch, FORWARD)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        ctx.stage.spend("backward", ctx.microbatch, BACKWARD)
        return upstream, None, None
