"""The alpha-beta model of an all-reduce: a time for each message, and a time for each byte.

Ring: 2(N-1) messages one after the other, and 2(N-1)/N times the tensor through each link.
Tree: 2 log2(N) messages one after the other, and 2 times the tensor through each link.
Both also have a constant time of a call. Where more ranks than cores share a machine, all of this
takes N/cores times as long, because the ranks take turns.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from gradsync.scale.samples import Sample

Shape = Callable[[int, int], tuple[float, float]]  # (ranks, bytes) -> (messages, bytes of a link)


def ring(ranks: int, size: int) -> tuple[float, float]:
    """Return the messages and the bytes of a link in a ring."""
    return 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size


def tree(ranks: int, size: int) -> tuple[float, float]:
    """Return the messages and the bytes of a link in a tree."""
    return 2 * math.log2(ranks), 2.0 * size


START = (1e-5, 1e-5, 1e-9)  # seconds of a call, a message and a byte, where the fit begins
SHAPES: dict[str, Shape] = {"ring": ring, "tree": tree}


@dataclass(frozen=True, slots=True)
class CostModel:
    """A fitted model of all-reduces."""

    shape: str  # "ring" or "tree"
    call: float  # seconds of a call
    alpha: float  # seconds of a message
    beta: float  # seconds of a byte
    cores: float = math.inf  # that the ranks share; infinite if each has its own

    def seconds(self, ranks: int, size: int) -> float:
        """Return the predicted time of an all-reduce."""
        if ranks == 1:
            return 0.0
        messages, transferred = SHAPES[self.shape](ranks, size)
        seconds = self.call + self.alpha * messages + self.beta * transferred
        return seconds * _turns(ranks, self.cores)

    def on_own_cores(self) -> CostModel:
        """Return the model of ranks that have a core each."""
        return replace(self, cores=math.inf)

    def error(self, samples: Sequence[Sample]) -> float:
        """Return the median relative error on some samples, such as 0.2 for 20%."""
        return statistics.median(
            abs(self.seconds(s.ranks, s.size) - s.seconds) / s.seconds for s in samples
        )


def _turns(ranks: int, cores: float) -> float:
    return max(1.0, ranks / cores)


def fit(samples: Sequence[Sample], shape: str, cores: float = math.inf) -> CostModel:
    """Fit the three times to the least error of their logarithms, so that all sizes count alike.

    Samples that other programs have delayed have less influence than in a fit of least squares.
    """
    rows = np.array([(1.0, *SHAPES[shape](s.ranks, s.size)) for s in samples])
    seconds = np.log([s.seconds / _turns(s.ranks, cores) for s in samples])
    found = least_squares(
        lambda logs: np.log(rows @ np.exp(logs)) - seconds, np.log(START), loss="soft_l1"
    )
    call, alpha, beta = np.exp(found.x).tolist()
    return CostModel(shape, call, alpha, beta, cores)


def best_fit(samples: Sequence[Sample], cores: float = math.inf) -> CostModel:
    """Return the model of the shape with the smaller error on these samples."""
    return min(
        (fit(samples, shape, cores) for shape in SHAPES), key=lambda model: model.error(samples)
    )
