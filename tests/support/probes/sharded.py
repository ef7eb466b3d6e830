"""Models for a sharded module, and what a rank holds of their parameters while they compute."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from support.probes.ready_made import ForbiddenShortcut
from support.probes.returned import WrongReturn, described
from support.probes.seeding import seed_weights

PATIENCE = 2.0  # seconds for memory to be released by other threads
LEAST = 24  # elements; smaller tensors are not looked at
READY = ("DTensor", "FullyShardedDataParallel", "FSDPModule", "ZeroRedundancyOptimizer")


class Layer(nn.Module):
    """A matrix, which calls `look` in its forward, and when its backward begins."""

    def __init__(self, inputs: int, outputs: int, look: Any = None, name: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.look, self.name = look, name

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.t()
        if self.look is not None:
            self.look("forward", self.name)
            if y.requires_grad:
                y.register_hook(  # type: ignore[no-untyped-call]
                    lambda _: self.look("backward", self.name)
                )
        return y


class Chain(nn.Module):
    """Layers of different sizes between norms."""

    def __init__(self, widths: list[int], look: Any = None) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(
            Layer(a, b, look, f"layers.{index}.weight") for index, (a, b) in enumerate(pairs)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(a) for a, _ in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = layer(norm(x)).tanh()
        return x


class Biased(nn.Module):
    """Linear layers with biases, a convolution, and a norm with buffers."""

    def __init__(self, inputs: int = 6, hidden: int = 7, outputs: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1)
        self.first = nn.Linear(2 * inputs, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, outputs)
        self.scale = nn.Parameter(torch.rand(()) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x[:, None]).flatten(1)  # (batch, 2 * inputs)
        logits: Tensor = self.last(self.norm(self.first(x)).tanh())
        return self.scale * logits


class Tied(nn.Module):
    """An embedding whose weight the last layer uses, too; a frozen and an unused layer."""

    def __init__(self, tokens: int = 11, width: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(width, 3)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("offset", torch.arange(width, dtype=torch.float64) / 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits: Tensor = self.head(self.norm(x + self.frozen(x) + self.offset.to(x.dtype)))
        return logits


def seeded(make: Any, seed: int, dtype: torch.dtype = torch.float64) -> Any:
    """Return a module with random parameters and buffers, those of norms too, by the seed alone."""
    seed_weights(seed)
    module = make().to(dtype)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dim() < 2 and tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) / 4)
    return module


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


class Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the memory of every tensor that is created in this context, without keeping it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: dict[int, tuple[StorageWeakRef, torch.dtype]] = {}
        self._patience = PATIENCE

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.follow(tensor)
        return result

    def follow(self, tensor: Tensor) -> None:
        if tensor.numel() >= LEAST and tensor.is_floating_point():
            storage = tensor.untyped_storage()
            weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self._storages[storage._cdata] = weak, tensor.dtype

    def held(self, whole: Mapping[str, Tensor], allowed: str = "") -> list[str]:
        """Return the names of the tensors of which some live memory contains all elements.

        A thread of gloo lets go of a message's memory only some time after the message is complete.
        So this waits for a while if there are others than the one that is allowed.
        """
        gc.collect()
        until = time.monotonic() + self._patience
        while True:
            found = self._found(whole)
            if set(found) <= {allowed}:
                return found
            if time.monotonic() > until:
                self._patience = 0.0  # this is a mistake, whatever comes later
                return found
            time.sleep(0.005)

    def _found(self, whole: Mapping[str, Tensor]) -> list[str]:
        with _disable_current_modes(), torch.no_grad():
            live = list(self._live())
            return sorted(n for n, value in whole.items() if any(_has(m, value) for m in live))

    def _live(self) -> Iterator[Tensor]:
        for key, (reference, dtype) in list(self._storages.items()):
            if reference.expired():  # type: ignore[no-untyped-call]
                del self._storages[key]
                continue
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is not None:
                yield torch.empty(0, dtype=dtype).set_(storage)


def _has(memory: Tensor, value: Tensor) -> bool:
    """Return whether some memory begins with all elements of a tensor, or has them transposed."""
    if memory.numel() < value.numel():
        return False
    start = memory[: value.numel()]
    return any(torch.equal(start, one.to(memory.dtype).reshape(-1)) for one in (value, value.mT))


def wrapped(trainer: Any, module: nn.Module, **options: Any) -> Any:
    """Return a FullyShardedModule of the submission.

    Raises:
        WrongReturn: it is not an nn.Module, or `.module` is not the given one.
        ForbiddenShortcut: one of torch's own classes shards the parameters.
    """
    model = trainer.FullyShardedModule(module, **options)
    if not isinstance(model, nn.Module) or getattr(model, "module", None) is not module:
        raise WrongReturn(
            "a FullyShardedModule must be an nn.Module, and its `.module` the module that it wraps."
        )
    objects = (*model.modules(), *model.parameters())
    kinds = {kind.__name__ for one in objects for kind in type(one).__mro__}
    if found := sorted(kinds & set(READY)):
        raise ForbiddenShortcut(
            f"torch's {found[0]} does the work here, but the exercise is to write it yourself"
        )
    return model


def full_state(model: Any) -> dict[str, Tensor]:
    """Return what `full_state_dict` returns, as copies."""
    state = model.full_state_dict()
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise WrongReturn(
            f"full_state_dict returns {described(state)}. It must return a dict of tensors."
        )
    return {str(name): value.detach().clone() for name, value in state.items()}


def without_gradient(model: Any) -> list[str]:
    """Return the trainable parameters that have no gradient of their own shape and dtype."""
    return [
        name
        for name, param in model.named_parameters()
        if param.requires_grad
        and (
            param.grad is None or (param.grad.shape, param.grad.dtype) != (param.shape, param.dtype)
        )
    ]


def step_of(model: Any, backward: Any) -> dict[str, Tensor]:
    """Take a step of size 1 after a backward; return what it subtracts, the whole gradients."""
    before = full_state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.zero_grad()
    backward()
    model.finish()
    optimizer.step()
    after = full_state(model)
    return {name: before[name] - after[name] for name in before if name in after}
