"""Steps of the course's small CNN on random images, to be timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from gradsync.model import SmallCNN
from gradsync.scale.fitting import BatchTiming


class Trained:
    """The small CNN with a batch and SGD. Every instance has the same batch."""

    def __init__(self, batch: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._model = SmallCNN()
        self._images = torch.rand(batch, 1, 28, 28, generator=generator)
        self._labels = torch.randint(10, (batch,), generator=generator)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)

    def forward(self) -> Tensor:
        """Return the loss."""
        self._optimizer.zero_grad()
        loss: Tensor = nn.functional.cross_entropy(self._model(self._images), self._labels)
        return loss

    def forward_and_backward(self) -> None:
        """Compute the gradients."""
        self.forward().backward()  # type: ignore[no-untyped-call]

    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradients, in the order of the parameters."""
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                yield parameter.grad

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
        return BatchTiming(len(self._labels), forward, backward, update)


def gradient_bytes() -> int:
    """Return the bytes of the small CNN's gradients."""
    return sum(p.numel() * p.element_size() for p in SmallCNN().parameters())
