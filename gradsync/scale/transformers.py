"""The step and the memory of a rank, for each way to split a transformer's training over N ranks.

All ways take the same step, so that they can be compared: N ranks process N times `batch` samples.
Nothing overlaps, every rank has its own core or GPU, and all numbers have four bytes.

The bytes of ZeRO are those of S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", 2020. The activations, and the collectives of tensor parallelism, are
those of V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
2022, without dropout, and with attention that does not keep its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gradsync.scale.costs import FLOAT, Compute, Network, crowding
from gradsync.scale.strategies import Workload, plain, sharded

KEPT = 16  # numbers that backward needs, for each token and layer, in units of the width
NOT_SPLIT = 4  # of these, with tensor parallelism: the inputs of norms, attention and MLP
STATES = 4  # numbers of a parameter: itself, its gradient, and two moments of Adam
MICROBATCHES = 4  # of a pipeline, for each of its stages


@dataclass(frozen=True, slots=True)
class Transformer:
    """A transformer and its samples, which all have the same number of tokens."""

    layers: int
    width: int
    tokens: int  # of a sample
    compute: Compute  # of a step of the whole model
    parameters: int
    gathers: float = 1  # collectives in which ZeRO-3 gathers a layer, on average
    head: float = 0.0  # compute after the last layer, in layers

    @property
    def size(self) -> int:
        """The bytes of all parameters."""
        return FLOAT * self.parameters

    def outputs(self, samples: float) -> float:
        """Return the bytes of a layer's outputs."""
        return FLOAT * samples * self.tokens * self.width

    def on(self, layers: int, width: int, tokens: int) -> Transformer:
        """Return a transformer of other sizes that computes at the same rate."""
        other = Transformer(layers, width, tokens, self.compute, parameters_of(layers, width))
        operations = other._operations() / self._operations()
        compute = replace(
            self.compute,
            fixed=self.compute.fixed * layers / self.layers,
            per_sample=self.compute.per_sample * operations,
            update=self.compute.update * other.parameters / self.parameters,
        )
        return replace(other, compute=compute)

    def _operations(self) -> int:
        """Return a number that is proportional to the multiplications for a sample.

        Each token is multiplied with all parameters of the layers, and attends to all tokens.
        """
        return self.layers * self.tokens * self.width * (6 * self.width + self.tokens)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a step for the busiest rank."""

    seconds: float
    sent: float  # bytes
    states: float  # bytes of parameters, gradients, and the optimizer's state
    activations: float  # bytes that forward keeps for backward


def parameters_of(layers: int, width: int) -> int:
    """Return the parameters of attention and MLP, without biases and embeddings."""
    return 12 * layers * width**2


Way = Callable[[Transformer, Network, float, int], Cost | None]


def data_parallel(model: Transformer, network: Network, batch: float, ranks: int) -> Cost:
    """All-reduce the gradients; every rank has everything."""
    seconds = plain(_workload(model), network, batch, ranks).seconds
    return Cost(seconds, 2 * _part(model.size, ranks), STATES * model.size, _kept(model, batch))


def zero_1(model: Transformer, network: Network, batch: float, ranks: int) -> Cost:
    """Reduce-scatter the gradients, all-gather the parameters; the moments are sharded."""
    seconds = sharded(_workload(model), network, batch, ranks).seconds
    states = 2 * model.size + 2 * model.size / ranks
    return Cost(seconds, 2 * _part(model.size, ranks), states, _kept(model, batch))


def zero_2(model: Transformer, network: Network, batch: float, ranks: int) -> Cost:
    """Send the same as ZeRO-1, but keep only a share of the gradients, too."""
    states = model.size + 3 * model.size / ranks
    return replace(zero_1(model, network, batch, ranks), states=states)


def zero_3(model: Transformer, network: Network, batch: float, ranks: int) -> Cost:
    """All-gather each layer in forward and again in backward, and reduce-scatter its gradients."""
    compute, messages = model.compute, model.layers * model.gathers
    size = model.size / messages
    sending = 2 * network.all_gather(size, ranks) + network.reduce_scatter(size, ranks)
    seconds = compute.passes(batch) + compute.update / ranks + messages * sending
    states = STATES * model.size / ranks + (size if ranks > 1 else 0)  # one is whole for a while
    return Cost(seconds, 3 * _part(model.size, ranks), states, _kept(model, batch))


def tensor_parallel(model: Transformer, network: Network, batch: float, ranks: int) -> Cost | None:
    """Split each matrix; all-reduce twice in a layer's forward and twice in its backward.

    Returns None if the ranks do not divide the width.
    """
    if model.width % ranks:
        return None
    samples = batch * ranks
    all_reduces, size = 4 * model.layers, model.outputs(samples)
    compute = model.compute.passes(batch) + model.compute.update / ranks
    seconds = compute + all_reduces * network.all_reduce(size, ranks)
    share = NOT_SPLIT + (KEPT - NOT_SPLIT) / ranks
    return Cost(
        seconds,
        all_reduces * 2 * _part(size, ranks),
        STATES * model.size / ranks,
        _kept(model, samples) * share / KEPT,
    )


def pipeline(model: Transformer, network: Network, batch: float, ranks: int) -> Cost | None:
    """Give each rank consecutive layers, and send activations forward and gradients back, in 1F1B.

    A step takes as long as (microbatches + ranks - 1) microbatches on the largest stage. If ranks
    share cores, one that waits leaves its core to the others, so only idle cores count: neither the
    largest stage nor the bubble delays full cores. Returns None if there are fewer layers than
    ranks.
    """
    if model.layers < ranks:
        return None
    samples, stage = batch * ranks, math.ceil(model.layers / ranks) / model.layers
    count, crowded = microbatches(batch, ranks), crowding(ranks, network.cores)
    size = model.outputs(samples / count)
    sending = 0.0 if ranks == 1 else 2 * network.exchange(size, ranks)
    largest = (math.ceil(model.layers / ranks) + model.head) / (model.layers + model.head)
    part = max(1 / ranks, largest / crowded)  # of the compute, in which crowded ranks are slower
    idle = (ranks / crowded - 1) / crowded
    seconds = (count + idle) * part * model.compute.passes(samples / count)
    seconds += (count + ranks - 1) * sending
    alive = min(ranks, count)  # microbatches whose activations the first rank keeps
    return Cost(
        seconds + part * model.compute.update,
        count * size * min(2, ranks - 1),  # a rank between two others sends to both
        STATES * model.size * stage,
        _kept(model, samples / count * alive) * stage,
    )


def microbatches(batch: float, ranks: int) -> int:
    """Return the number of microbatches of a pipeline: each has at least one sample."""
    return 1 if ranks == 1 else max(1, min(MICROBATCHES * ranks, int(batch * ranks)))


def bubble(batch: float, ranks: int) -> float:
    """Return the share of a pipeline's step in which a rank has nothing to do."""
    return (ranks - 1) / (microbatches(batch, ranks) + ranks - 1)


def ring(model: Transformer, network: Network, batch: float, ranks: int) -> Cost | None:
    """Split each sample's tokens; keys and values go round the ring, and average the gradients.

    In a layer's forward, a rank passes on keys and values `ranks - 1` times. In backward it does so
    again, and passes on their gradients `ranks` times. Returns None if the ranks do not divide the
    tokens.
    """
    if model.tokens % ranks:
        return None
    size = 2 * model.outputs(batch)  # keys and values of this rank's tokens
    exchanges = model.layers * (3 * ranks - 2) if ranks > 1 else 0
    base = data_parallel(model, network, batch, ranks)
    return replace(
        base,
        seconds=base.seconds + exchanges * network.exchange(size, ranks),
        sent=base.sent + exchanges * size,
        activations=base.activations + (2 * size if ranks > 1 else 0),  # of two other ranks
    )


WAYS: Mapping[str, Way] = {
    "data parallel": data_parallel,
    "ZeRO-1": zero_1,
    "ZeRO-2": zero_2,
    "ZeRO-3": zero_3,
    "tensor": tensor_parallel,
    "pipeline": pipeline,
    "ring attention": ring,
}


def _workload(model: Transformer) -> Workload:
    return Workload(model.compute, model.size)


def _part(size: float, ranks: int) -> float:
    """Return the bytes that a rank sends in half an all-reduce of `size` bytes."""
    return (ranks - 1) / ranks * size


def _kept(model: Transformer, samples: float) -> float:
    """Return the bytes of all layers' activations."""
    return KEPT * model.layers * model.outputs(samples)
