"""A model in stages that is observed during training, and the same training run without stages."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from support.probes.models import tensors_of
from support.probes.seeding import seed_weights

Kind = Literal["vectors", "wide", "words"]  # the kind of inputs
Microbatches = Sequence[tuple[Tensor, Tensor]]  # inputs (sample, feature) and targets (sample,)
Named = dict[str, Any]  # by the parameter's name in the unsplit model

LEARNING_RATE, MOMENTUM = 0.3, 0.9
BLOCKS, CLASSES = 4, 3
WIDE = 2048  # features of an input that is much larger than any activation
WORDS = 16_500  # per sample; a dimension of their activations is too large for an int16


class Turn(nn.Module):
    """Swap the last two dimensions, which makes the output non-contiguous."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.transpose(1, 2)


class Kept:
    """Stands for a tensor that backward needs, for as long as autograd keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Marked(torch.autograd.Function):
    """Returns its input; the graph keeps a mark for as long as anything keeps the graph."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mark: Any) -> Tensor:
        ctx.mark = mark
        return values.view_as(values)

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Watched(nn.Module):
    """A stage that records its passes, their modes, and the microbatches that are kept.

    A microbatch that runs forward twice, because it is computed again for backward, counts once.
    """

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.order: list[str] = []
        self.backwards: list[int] = []  # the microbatches, numbered as they first ran forward
        self.modes: list[bool] = []
        self.alive: list[int] = []  # at each forward: microbatches with tensors for backward
        self.graphs: list[int] = []  # and microbatches whose outputs or loss are still referenced
        self._again: dict[bytes, list[int]] = {}  # by their inputs, microbatches without a graph
        self._kept: dict[int, weakref.WeakSet[Any]] = {}
        self._marks: list[weakref.ref[Any]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.modes.append(self.training)
        number = self._number(inputs)
        kept = self._kept.setdefault(number, weakref.WeakSet())

        def keep(tensor: Tensor) -> Kept:
            one = Kept(tensor)
            kept.add(one)
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one.tensor):
            outputs: Tensor = self.stage(inputs)
        if outputs.requires_grad:
            mark = Kept(outputs.detach())
            self._marks.append(weakref.ref(mark))
            outputs = Marked.apply(outputs, mark)  # type: ignore[no-untyped-call]
            outputs.register_hook(partial(self._note_backward, number))  # type: ignore[no-untyped-call]
        self.alive.append(sum(map(bool, self._kept.values())))
        self.graphs.append(sum(mark() is not None for mark in self._marks))
        return outputs

    def _note_backward(self, number: int, _grad: Tensor) -> None:
        self.order.append("backward")
        self.backwards.append(number)

    def _number(self, inputs: Tensor) -> int:
        """Return the number of a microbatch; note its forward, unless it is computed again."""
        values = inputs.detach().contiguous().view(torch.uint8).numpy().tobytes()
        again = self._again.setdefault(values, [])
        if torch.is_grad_enabled() and again:
            return again.pop(0)
        self.order.append("forward")
        number = len(self._kept)
        if not torch.is_grad_enabled():
            again.append(number)
        return number


def cuts(world_size: int) -> list[tuple[int, int]]:
    """Return the range of blocks of each rank: (first, end)."""
    edges = [round(BLOCKS * rank / world_size) for rank in range(world_size + 1)]
    return list(pairwise(edges))


def by_stage(values: Named, world_size: int) -> list[Named]:
    """Split the values of an unsplit model, by name, into the values of each stage."""
    return [
        {name: value for name, value in values.items() if first <= int(name[0]) < end}
        for first, end in cuts(world_size)
    ]


def stage_of(kind: Kind, first: int, end: int, frozen: Sequence[int] = ()) -> nn.Module:
    """Return some blocks as one module, with the same names as in the unsplit model."""
    blocks = _blocks_of(kind)
    for block in frozen:
        blocks[block].requires_grad_(False)
    return nn.Sequential(OrderedDict((str(k), blocks[k]) for k in range(first, end)))


def _blocks_of(kind: Kind) -> list[nn.Sequential]:
    """Return the blocks of a model, with the same weights in every call."""
    seed_weights(11)
    first: nn.Module
    width = WORDS if kind == "words" else 5
    if kind == "words":
        first = nn.Sequential(nn.Embedding(7, 2), nn.Flatten())
    else:
        first = nn.Linear({"vectors": 6, "wide": WIDE}[kind], 10)
    blocks = [
        nn.Sequential(first, nn.Tanh()),  # (sample, 2 * width)
        nn.Sequential(
            nn.Unflatten(1, (width, 2)), nn.Linear(2, 3), nn.Tanh()
        ),  # (sample, width, 3)
        nn.Sequential(Turn(), nn.Linear(width, 4), nn.Tanh(), Turn()),  # (sample, 4, 3)
        nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES)),
    ]
    if kind == "words":
        blocks[2].append(nn.Unflatten(1, (2, 1, 2, 1)))  # (sample, 2, 1, 2, 1, 3)
    return [block.double() if kind == "words" else block for block in blocks]


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with two groups: the weights and the biases."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() > 1], "lr": LEARNING_RATE},
        {"params": [p for p in params if p.dim() == 1], "lr": LEARNING_RATE / 2},
    ]
    return torch.optim.SGD(groups, momentum=MOMENTUM)


def count_steps(optimizer: torch.optim.Optimizer) -> list[None]:
    """Return a list that gets an item at each step of the optimizer."""
    taken: list[None] = []
    optimizer.register_step_post_hook(lambda *_: taken.append(None))
    return taken


def gradients_of(model: nn.Module) -> Named:
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def draw_microbatches(
    rng: np.random.Generator, sizes: Sequence[int], kind: Kind = "vectors"
) -> Microbatches:
    """Return microbatches of these sizes; no sample has the last class."""
    features = {"vectors": 6, "wide": WIDE, "words": WORDS}[kind]
    microbatches = []
    for size in sizes:
        inputs = rng.standard_normal((size, features), np.float32)
        words = rng.integers(0, 7, (size, features))
        targets = torch.from_numpy(rng.integers(0, CLASSES - 1, size))
        microbatches.append((torch.from_numpy(words if kind == "words" else inputs), targets))
    return microbatches


def unsplit(
    steps: Sequence[Microbatches],
    *,
    kind: Kind = "vectors",
    frozen: Sequence[int] = (),
    weigh: Literal["samples", "equally", "summed", "last"] = "samples",
    zeroed: int = 2,
) -> dict[str, Any]:
    """Train the unsplit model, correctly or with a mistake.

    A mistake may `weigh` the microbatches in a wrong way, or clear the gradients of only the first
    `zeroed` parameter groups.

    Returns:
        `gradients` of the last step and `weights` after it, by name, and the `losses` by step.
    """
    model = stage_of(kind, 0, BLOCKS, frozen)
    optimizer = optimizer_for(model)
    losses = []
    for microbatches in steps:
        samples = sum(len(wanted) for _, wanted in microbatches)
        for group in optimizer.param_groups[:zeroed]:
            for param in group["params"]:
                param.grad = None
        losses.append(0.0)
        for k, (inputs, targets) in enumerate(microbatches, start=1):
            factor = {
                "samples": len(targets) / samples,
                "equally": 1 / len(microbatches),
                "summed": 1.0,
                "last": len(targets) / samples * (k == len(microbatches)),
            }[weigh]
            share = nn.functional.cross_entropy(model(inputs), targets) * factor
            share.backward()  # type: ignore[no-untyped-call]
            losses[-1] += share.item()
        optimizer.step()
    return {"gradients": gradients_of(model), "weights": tensors_of(model), "losses": losses}
