"""Batches on a different device from the model, tested on a machine with only one device."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from support.probes.gpus import Gpus, imported_anew

ELSEWHERE = "meta"  # a device type that torch always has
COPY = "aten.copy_.default"  # by name, because probes are pickled


class MovedToGpu(Exception):  # noqa: N818 - it is not always a mistake
    """A tensor was moved to a GPU."""


class Elsewhere(Tensor):
    """A tensor that seems to be on another device: it can be moved, but not mixed with others.

    Moving it to a GPU raises `MovedToGpu`.
    """

    there: Tensor

    @staticmethod
    def __new__(cls, there: Tensor) -> Elsewhere:
        device = torch.device(ELSEWHERE)
        made = Tensor._make_wrapper_subclass(cls, there.shape, dtype=there.dtype, device=device)
        made.there = there
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function as for any tensor, but raise `MovedToGpu` for a move to a GPU."""
        to = None
        if func is Tensor.to:
            to = torch._C._nn._parse_to(*args[1:], **kwargs or {})[0]
        if func is Tensor.cuda or (to is not None and to.type == "cuda"):
            raise MovedToGpu
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod  # torch does not declare it as one
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute with the real tensors; the result is an `Elsewhere` too, unless it was moved."""
        options = kwargs or {}
        mixed = any(type(leaf) is not cls for leaf in tree_flatten([args, options])[0] if _is(leaf))
        to = options.get("device")
        moved = str(func) == COPY if mixed else to is not None and to.type != ELSEWHERE
        if mixed and not moved:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device")
        result = func(*_behind(args), **_behind(options))
        return result if moved else tree_map(lambda leaf: cls(leaf) if _is(leaf) else leaf, result)


def skip_distributed_tensors() -> None:
    """Keep torch from importing its distributed tensors, which takes half a second.

    torch imports them in its first call of `__torch_dispatch__`, only to compare types.
    """
    name = "torch.distributed.tensor"
    if name in sys.modules:
        return
    stub = ModuleType(name)
    stub.DTensor = type("DTensor", (Tensor,), {})  # type: ignore[attr-defined]
    sys.modules[name] = stub
    with suppress(AttributeError, ImportError):  # a different torch may need more of the module
        Elsewhere(torch.zeros(1)).clone()
    del sys.modules[name]


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _behind(values: Any) -> Any:
    return tree_map(lambda leaf: leaf.there if isinstance(leaf, Elsewhere) else leaf, values)


class Noting(nn.Linear):
    """A layer of float64 that records the device types of its inputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, dtype=torch.float64)
        self.met: list[str] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.met.append(inputs.device.type)
        return super().forward(inputs)


def devices_met(trainer: ModuleType, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return the devices of the tensors that `train_step` passes to a model and a loss function.

    The model is on the CPU. `at_home` are the devices for a batch on the CPU. `away` adds the
    devices for a batch elsewhere, on a machine that seems to have GPUs. The submission is imported
    again for this, because it may query the GPUs on import.
    """
    model = Noting(inputs.shape[1], int(targets.max()) + 1)
    wanted: list[str] = []

    def loss_fn(outputs: Tensor, classes: Tensor) -> Tensor:
        wanted.append(classes.device.type)
        return nn.functional.cross_entropy(outputs, classes)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer.train_step(model, (inputs, targets), loss_fn, optimizer)
    at_home = {"inputs": model.met.copy(), "targets": wanted.copy()}
    skip_distributed_tensors()
    Gpus().appear()
    batch = (Elsewhere(inputs), Elsewhere(targets))
    try:
        imported_anew(trainer).train_step(model, batch, loss_fn, optimizer)
    except MovedToGpu:
        model.met.append("cuda")
    except Exception:  # noqa: BLE001, S110 - tensors on different devices
        pass
    return {"at_home": at_home, "away": {"inputs": model.met, "targets": wanted}}
