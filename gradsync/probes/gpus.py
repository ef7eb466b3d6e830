"""What a setup takes on a machine with GPUs, told on one that has none."""

from __future__ import annotations

import contextlib
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
    """GPUs that can be asked for and chosen, and not computed on.

    Attributes:
        pinned: the CUDA devices that were set, as texts.
        started: the backends that groups were started on; "" where torch was to choose.
        tried: whether somebody has computed on one in vain. What it does after that says nothing.
    """

    def __init__(self) -> None:
        self.pinned: list[str] = []
        self.started: list[str] = []
        self.tried = False

    def pin(self, device: Any) -> None:
        """Take a device as the current one, if it is one of CUDA's with a number."""
        text = str(device) if isinstance(device, (str, torch.device)) else f"cuda:{int(device)}"
        if text.startswith("cuda:"):
            self.pinned.append(text)

    def current(self) -> int:
        return int(self.pinned[-1].removeprefix("cuda:")) if self.pinned else 0

    def refuse(self) -> None:
        """Fail as torch does where it has no CUDA."""
        self.tried = True
        raise AssertionError("Torch not compiled with CUDA enabled")

    def backend(self, *_: Any) -> str:
        return self.started[-1] or "nccl"

    def appear(self) -> None:
        """Be what torch tells of this machine from now on, to all but its groups."""
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
        built = sys.modules["torch.backends.cuda"]  # by its name, since probes are pickled
        for owner in (torch.cuda, torch.accelerator, built):
            _replace(owner, known)

    def install(self) -> None:
        """Appear, and be what groups are started for from now on; they are on gloo all the same."""
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
            "barrier": lambda *_, **__: None,  # of a single rank
        }
        _replace(dist, known)


def _replace(module: ModuleType, known: dict[str, Any]) -> None:
    """Put these in the place of what the module has by their names."""
    for name in known.keys() & vars(module).keys():
        setattr(module, name, known[name])


def taken_among_gpus(trainer: ModuleType, *place: Any) -> dict[str, Any]:
    """Return what `setup_distributed` takes where there are GPUs: `pinned`, `backends`, `returned`.

    The submission is imported anew, since it may have asked for GPUs when it was. It may fail
    halfway; what it had taken by then is told, and `returned` is None then, else a list of one
    text. Where it chooses among the GPUs by a variable of the environment, none is `pinned`, and
    only the kind of the one that it returned is told.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus, returned = Gpus(), None
    gpus.install()
    with contextlib.suppress(Exception, SystemExit):
        anew = imported_anew(trainer)
        device = anew.setup_distributed(anew.RankInfo(*place))
        known = isinstance(device, (str, torch.device)) and not gpus.tried
        returned = [str(device)] if known else None
    if os.environ.get("CUDA_VISIBLE_DEVICES") != visible:
        gpus.pinned, returned = (
            [],
            [text for text in returned or [] if text.startswith("cpu")] or None,
        )
    return {"pinned": gpus.pinned, "backends": gpus.started, "returned": returned}


def imported_anew(module: ModuleType) -> ModuleType:
    """Import a module, and those of its folder that it imports, as if for the first time."""
    folder = f"{Path(str(module.__file__)).parent}{os.sep}"
    for name, known in list(sys.modules.items()):
        if str(getattr(known, "__file__", "")).startswith(folder):
            del sys.modules[name]
    return importlib.import_module(module.__name__)
