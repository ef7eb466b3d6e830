"""The cost of a training step on one rank, without communication."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds for forward, backward and the optimizer's update, on one core or GPU."""

    fixed: float  # seconds for each batch, however small
    per_sample: float  # seconds for each sample
    update: float = 0.0  # seconds for the optimizer's step
    backward_share: float = 2 / 3  # of forward and backward

    def passes(self, batch: float) -> float:
        """Return the seconds for forward and backward of `batch` samples."""
        return self.fixed + self.per_sample * batch

    def backward(self, batch: float) -> float:
        """Return the seconds for backward of `batch` samples."""
        return self.backward_share * self.passes(batch)

    def step(self, batch: float) -> float:
        """Return the seconds for a complete step of `batch` samples on one rank."""
        return self.passes(batch) + self.update
