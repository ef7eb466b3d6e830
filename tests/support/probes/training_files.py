"""Training of a model with a large file, which records when the file changes."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from support.probes import Info, raised
from support.probes.files import HARMS, file_changes, limit_writes
from support.probes.seeding import seed_weights

WRITE_SECONDS = 1.0  # for a file that another thread writes
WIDTH = 3000  # of the hidden layer: the model's file has 190 kB, but a batch only a few bytes
LIMIT = 20_000  # bytes: a write of the model's file exceeds it
FILE = "there.pt"


class Wide(nn.Sequential):
    """A model with a large file; it records the file's checksum in each training forward."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3))
        self.checksums: list[int | None] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            if len(self.checksums) > 1:  # an epoch is over, but another thread may still be writing
                self.await_write()
            self.checksums.append(checksum())
        outputs: Tensor = super().forward(inputs)  # type: ignore[no-untyped-call]
        return outputs

    def await_write(self) -> None:
        until = time.monotonic() + WRITE_SECONDS
        while checksum() == self.checksums[0] and time.monotonic() < until:
            time.sleep(0.01)


def checksum() -> int | None:
    try:
        return zlib.crc32(Path(FILE).read_bytes())
    except FileNotFoundError:
        return None


def _run_training(trainer: Any, rank: int, world_size: int, epochs: int) -> Wide:
    """Train a model on few samples, one step per epoch, with a file; return the model."""
    seed_weights(0)
    model = Wide().double()
    data = TensorDataset(torch.rand(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    options = {"epochs": epochs, "batch_size": 6, "lr": 0.01, "resume_from": FILE}
    trainer.train(Info(rank, world_size), model, data, data, **options)
    return model


def probe_writing(rank: int, world_size: int, trainer: Any) -> list[bool]:
    """Train for 4 epochs; return whether there is a file, and whether it changed in between."""
    if rank != 0:  # a write by another rank exceeds this limit
        limit_writes(LIMIT)
    model = _run_training(trainer, rank, world_size, epochs=4)
    return [os.path.exists(FILE), len(set(model.checksums)) > 1]


def probe_failed_write(trainer: Any) -> list[bool]:
    """Train while the disk becomes full.

    Return whether the old file was ever harmed, and whether it stays if a write fails.
    """
    _run_training(trainer, 0, 1, epochs=1)
    here = Path.cwd() / FILE
    previous, changes = here.exists(), file_changes()
    _run_training(trainer, 0, 1, epochs=2)
    gone = previous and any(path == here and done in HARMS for done, path in changes)
    before = here.read_bytes() if here.exists() else None
    limit_writes(LIMIT)
    raised(lambda: _run_training(trainer, 0, 1, epochs=3))  # any error, or none, is accepted
    return [gone, before is not None and here.exists() and here.read_bytes() == before]


def probe_code_in_file(trainer: Any, files: list[bytes]) -> list[bool]:
    """Train with files that contain code; return whether a file is written, and whether it ran."""
    _run_training(trainer, 0, 1, epochs=1)
    kept = os.path.exists(FILE)
    for content in files:
        Path(FILE).write_bytes(content)
        raised(lambda: _run_training(trainer, 0, 1, epochs=1))  # refusing the file is correct
    return [kept, os.path.exists("ran")]
