"""Measurements that run on ranks: the seconds for collectives, and for steps of training.

They call the process group's backend directly. The engine reports every other call to its
supervisor and waits for an answer, which takes longer than a small all-reduce.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradsync.model import SmallCNN
from gradsync.scale.costs import FLOAT
from gradsync.scale.fitting import BatchTiming

ENOUGH = 8 * 2**20  # bytes of all repetitions of one size
FEWEST, MOST = 2, 30  # repetitions
WARMING = 100  # all-reduces before the measurement, because the first ones are slow
STEPS = 4
LAYERS, WIDTH, TOKENS = 4, 128, 128  # of the small transformer


class Trained:
    """A model with a batch and an optimizer. Every instance has the same batch."""

    def __init__(self, batch: int, model: str = "cnn") -> None:
        generator = torch.Generator().manual_seed(0)
        is_cnn = model == "cnn"
        shape = (batch, 1, 28, 28) if is_cnn else (batch, TOKENS, WIDTH)
        self._model = SmallCNN() if is_cnn else small_transformer()
        self._inputs = torch.rand(shape, generator=generator)
        self._labels = torch.randint(10, (batch,), generator=generator)
        optimizer = torch.optim.SGD if is_cnn else torch.optim.AdamW
        self._optimizer: Optimizer = optimizer(self._model.parameters(), lr=1e-3)

    def forward(self) -> Tensor:
        """Return the loss."""
        self._optimizer.zero_grad()
        outputs = self._model(self._inputs)  # (batch, classes), or (batch, tokens, width)
        scores = outputs if outputs.dim() == 2 else outputs[:, -1]
        loss: Tensor = nn.functional.cross_entropy(scores, self._labels)
        return loss

    def gradients(self) -> Tensor:
        """Run forward and backward; return all gradients in one tensor."""
        self.forward().backward()  # type: ignore[no-untyped-call]
        grads = (parameter.grad for parameter in self._model.parameters())
        return torch.cat([grad.flatten() for grad in grads if grad is not None])

    def update(self) -> None:
        """Step the optimizer."""
        self._optimizer.step()

    def timed(self) -> BatchTiming:
        """Take a step, and return the seconds for each part of it."""
        moments = [time.perf_counter()]
        loss = self.forward()
        moments.append(time.perf_counter())
        loss.backward()  # type: ignore[no-untyped-call]
        moments.append(time.perf_counter())
        self.update()
        moments.append(time.perf_counter())
        forward, backward, update = (b - a for a, b in pairwise(moments))
        return BatchTiming(len(self._inputs), forward, backward, update)


def all_reduces(sizes: Sequence[int]) -> list[list[float]]:
    """Return the seconds of several all-reduces of each size in bytes, without the first."""
    torch.set_num_threads(1)
    backend = _backend()
    for _ in range(WARMING):
        _sum(backend, torch.ones(1))
    taken = []
    for size in sizes:
        tensor = torch.ones(size // FLOAT)
        times = min(MOST, max(FEWEST, ENOUGH // size))
        seconds = [_seconds(partial(_sum, backend, tensor)) for _ in range(times + 1)]
        taken.append(seconds[1:])
    return taken


def steps(batches: Sequence[int]) -> list[list[float]]:
    """Return the seconds of several steps of data-parallel training, for each batch size."""
    torch.set_num_threads(1)
    backend = _backend()
    taken = []
    for batch in batches:
        trained = Trained(batch)
        step = partial(_step, backend, trained)
        taken.append([_seconds(step) for _ in range(STEPS + 1)][1:])
    return taken


def alone(batches: Sequence[int], model: str) -> list[list[tuple[int, float, float, float]]]:
    """Return the fields of a `BatchTiming` for several steps of each batch size, on one rank."""
    torch.set_num_threads(1)
    taken = []
    for batch in batches:
        trained = Trained(batch, model)
        timings = [trained.timed() for _ in range(STEPS + 1)][1:]
        taken.append([(t.batch, t.forward, t.backward, t.update) for t in timings])
    return taken


def small_transformer() -> nn.Module:
    """Return blocks of attention and MLP: inputs and outputs are (batch, tokens, width)."""
    sizes = {"d_model": WIDTH, "nhead": WIDTH // 32, "dim_feedforward": 4 * WIDTH}
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True, **sizes}
    blocks = (nn.TransformerEncoderLayer(activation="gelu", **options) for _ in range(LAYERS))
    return nn.Sequential(*blocks)


def gradient_bytes() -> int:
    """Return the bytes of the small CNN's gradients."""
    return sum(p.numel() * p.element_size() for p in SmallCNN().parameters())


def _backend() -> Any:
    group: Any = dist.group.WORLD
    return group._get_backend(torch.device("cpu"))


def _step(backend: Any, trained: Trained) -> None:
    _sum(backend, trained.gradients())
    trained.update()


def _sum(backend: Any, tensor: Tensor) -> None:
    backend.allreduce([tensor]).wait()


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
