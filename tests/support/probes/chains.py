"""Averaging the gradients of a chain of parameters, with marks between the collectives."""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from support.probes.bucket_marks import mark
from support.probes.late_rank import let_rest

Sizes = Sequence[int]  # the elements of each parameter
# When a step happens: after a normal one, after one whose no_sync() block raised an exception, and
# after one that did not use the last layer.
Moment = Literal["second", "interrupted", "unused"]


class Chain(nn.Module):
    """A model that uses parameters of any sizes one after the other."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.full((size,), 0.01, dtype=dtype) for size in sizes)

    def forward(
        self,
        inputs: Tensor,
        after_first: Callable[[Tensor], None] | None = None,
        used: int | None = None,
    ) -> Tensor:
        hidden = torch.zeros(())
        for number, weight in enumerate(self.weights[:used]):
            hidden = torch.tanh(hidden + inputs[: len(weight)] @ weight)
            if number == 0 and after_first is not None:
                # In backward, only this weight comes after it.
                hidden.register_hook(after_first)  # type: ignore[no-untyped-call]
        return hidden


def probe_buckets(
    rank: int, trainer: Any, cases: Sequence[tuple[Sizes, float | None, str]], steps: int
) -> float | None:
    """Average the gradients of chains, with marks around each step; return the default cap.

    A case has the sizes of the parameters, the cap in MiB, and the parameters' dtype.
    """
    group = dist.new_group()
    for case, (sizes, cap, name) in enumerate(cases):
        dtype = getattr(torch, name)
        model = Chain(sizes, dtype)
        options = {} if cap is None else {"bucket_cap_mb": cap}
        averager = trainer.BucketedGradientAverager(model, **options)
        for step in range(steps):
            mark(group, stretch_of(case, step, steps)[0])
            inputs = torch.linspace(-0.1, 0.1, max(sizes), dtype=dtype)
            model(inputs * (rank + 1)).backward()
            averager.finish()
        mark(group, stretch_of(case, step, steps)[1])
    known = inspect.signature(trainer.BucketedGradientAverager).parameters
    default = known["bucket_cap_mb"].default if "bucket_cap_mb" in known else None
    return float(default) if isinstance(default, (int, float)) else None


def stretch_of(case: int, step: int, steps: int) -> tuple[int, int]:
    """Return the marks before and after a step, counted from 0; no constructor is inside."""
    first = case * (steps + 1) + step + 1
    return first, first + 1


def probe_overlap(
    rank: int, trainer: Any, sizes: Sizes, cap: float, moments: Sequence[Moment]
) -> list[list[Tensor | None]]:
    """Return the gradients of one chain for each moment in which overlap is checked."""
    group = dist.new_group()
    return [
        _overlap(rank, trainer, sizes, cap, when, group, marks=(2 * number + 1, 2 * number + 2))
        for number, when in enumerate(moments)
    ]


def _overlap(
    rank: int,
    trainer: Any,
    sizes: Sizes,
    cap: float,
    when: Moment,
    group: Any,
    marks: tuple[int, int],
) -> list[Tensor | None]:
    """Run rank 0's backward before the other ranks begin theirs.

    They begin when rank 0 reaches its first layer, which is the last one in backward. By then,
    rank 0 may have started to average buckets, but can't have waited for one.
    """
    model = Chain(sizes)
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
    inputs = torch.linspace(-0.1, 0.1, max(sizes)) * (rank + 1)

    def at_the_first_layer(_grad: Tensor) -> None:
        if threading.active_count() > 1:  # a helper thread may be about to send a bucket
            let_rest([os.getpid()])
        mark(group, marks[1])

    if when != "interrupted":  # this case has no earlier step
        model(inputs, used=-1 if when == "unused" else None).backward()
        averager.finish()
        model.zero_grad()
    with contextlib.suppress(ZeroDivisionError), averager.no_sync():
        model(inputs).backward()
        if when == "interrupted":
            raise ZeroDivisionError
    mark(group, marks[0])
    if rank != 0:
        mark(group, marks[1])
    model(inputs, at_the_first_layer if rank == 0 else None).backward()
    averager.finish()
    return [weight.grad for weight in model.weights]
