"""Simulate GPUs, to test which devices and backends `setup_distributed` uses with GPUs."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

COUNT = 8


class Gpus:
    """Simulated GPUs, which can be queried and selected but not used for computing.

    Attributes:
        pinned: the CUDA devices that were set, as strings.
        started: the backends of the groups that were started; "" if torch chooses.
        tried: whether code tried to compute on a GPU. Later calls are not judged.
    """

    def __init__(self) -> None:
        self.pinned: list[str] = []
        self.started: list[str] = []
        self.tried = False

    def pin(self, device: Any) -> None:
        """Record the current device, if it is a CUDA device with a number."""
        text = str(device) if isinstance(device, (str, torch.device)) else f"cuda:{int(device)}"
        if text.startswith("cuda:"):
            self.pinned.append(text)

    def current(self) -> int:
        return int(self.pinned[-1].removeprefix("cuda:")) if self.pinned else 0

    def refuse(self) -> None:
        """Raise the error of a build of torch without CUDA."""
        self.tried = True
        raise AssertionError("Torch not compiled with CUDA enabled")

    def backend(self, *_: Any) -> str:
        return self.started[-1] or "nccl"

    def appear(self) -> None:
        """Replace torch's functions that report devices, but not those for process groups."""
        known = {
            "is_available": lambda: True,
            "device_count": lambda: COUNT,
            "current_device": self.current,
            "current_device_index": self.current,
            "current_device_idx": self.current,
            "current_accelerator": lambda *_, **__: torch.device("cuda"),
            "set_device": self.pin,
            "set_device_index": self.pin,
            "set_device_idx": self.pin,
            "_lazy_init": self.refuse,
            "is_built": lambda: True,
        }
        built = sys.modules["torch.backends.cuda"]  # by name, because probes are pickled
        for owner in (torch.cuda, torch.accelerator, built):
            _replace(owner, known)

    def install(self) -> None:
        """Replace torch's functions for devices and for process groups; the groups use gloo."""
        self.appear()
        start = dist.init_process_group

        def init_process_group(backend: Any = None, *args: Any, **options: Any) -> None:
            if not self.tried:
                self.started.append("" if backend in (None, "undefined") else str(backend).lower())
            device = options.pop("device_id", None)
            if device is not None:
                self.pin(device)
            options.pop("pg_options", None)
            start("gloo", *args, **options)

        known = {
            "is_nccl_available": lambda: True,
            "init_process_group": init_process_group,
            "get_backend": self.backend,
            "barrier": lambda *_, **__: None,  # there is a single rank
        }
        _replace(dist, known)


def _replace(module: ModuleType, known: dict[str, Any]) -> None:
    """Replace the functions that the module has."""
    for name in known.keys() & vars(module).keys():
        setattr(module, name, known[name])


def taken_among_gpus(trainer: ModuleType, *place: Any) -> dict[str, Any]:
    """Return `pinned`, `backends` and `returned` of `setup_distributed` on simulated GPUs.

    The submission is imported again, because it may query the GPUs on import. If it fails, the
    result has the devices and backends used until then, and `returned` is None; otherwise
    `returned` is a list of one string. If the submission selects a GPU with an environment
    variable, `pinned` is empty, and `returned` is None unless it is the CPU.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus, returned = Gpus(), None
    gpus.install()
    try:
        imported = imported_anew(trainer)
        device = imported.setup_distributed(imported.RankInfo(*place))
        known = isinstance(device, (str, torch.device)) and not gpus.tried
        returned = [str(device)] if known else None
    except (Exception, SystemExit) as error:
        if isinstance(error, NotImplementedError) and "setup_distributed" in str(error):
            raise  # the exercise is not written yet; torch raises this type for CUDA, too
    if os.environ.get("CUDA_VISIBLE_DEVICES") != visible:
        gpus.pinned, returned = (
            [],
            [text for text in returned or [] if text.startswith("cpu")] or None,
        )
    return {"pinned": gpus.pinned, "backends": gpus.started, "returned": returned}


def imported_anew(module: ModuleType) -> ModuleType:
    """Import a module again, and the modules in its folder that it imports."""
    folder = f"{Path(str(module.__file__)).parent}{os.sep}"
    for name, known in list(sys.modules.items()):
        if str(getattr(known, "__file__", "")).startswith(folder):
            del sys.modules[name]
    return importlib.import_module(module.__name__)
