"""The file from which a training run resumes: which rank writes it, how, and how it is read."""

import os
import time
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import check, exercise
from support.probes import Info, raised
from support.probes.files import HARMS, file_changes, files_with_code, limit_writes
from support.probes.seeding import seed_weights
from support.probes.training import TIME_TO_END
from support.rules.checkpoints import writes_too

GUIDE = "Resuming"
# For a run in which train raises: it may search for lost ranks.
LIMIT = {"timeout": 20 + TIME_TO_END, "promised": True}
WRITE_SECONDS = 1.0  # for a file that another thread writes
WIDTH = 3000  # of the hidden layer: the model's file has 190 kB, but a batch only a few bytes


class Wide(nn.Sequential):
    """A model with a large file; it records the file's checksum in each training forward."""

    def __init__(self):
        super().__init__(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3))
        self.checksums = []

    def forward(self, inputs):
        if self.training:
            if len(self.checksums) > 1:  # an epoch is over, but another thread may still be writing
                self.await_write()
            self.checksums.append(checksum())
        return super().forward(inputs)

    def await_write(self):
        until = time.monotonic() + WRITE_SECONDS
        while checksum() == self.checksums[0] and time.monotonic() < until:
            time.sleep(0.01)


def checksum():
    try:
        return zlib.crc32(Path("there.pt").read_bytes())
    except FileNotFoundError:
        return None


def run_training(trainer, rank, world_size, epochs):
    """Train a model on few samples, one step per epoch, with a file; return the model."""
    seed_weights(0)
    model = Wide().double()
    data = TensorDataset(torch.rand(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    options = {"epochs": epochs, "batch_size": 6, "lr": 0.01, "resume_from": "there.pt"}
    trainer.train(Info(rank, world_size), model, data, data, **options)
    return model


@exercise("phase2/train", points=0.25)
def test_only_rank_0_writes(ranks):
    """Only rank 0 writes the file of `resume_from`, in each epoch."""

    def probe(rank, world_size, trainer):
        if rank != 0:  # a write by another rank exceeds this limit
            limit_writes(20_000)
        model = run_training(trainer, rank, world_size, epochs=4)
        return [os.path.exists("there.pt"), len(set(model.checksums)) > 1]

    seen = ranks(probe, 2, mistakes=[writes_too(GUIDE)])

    exists, updated = seen[0]
    check_exists(exists)
    check(
        updated,
        "resume-lost",
        "In a training run of 4 epochs with `resume_from`, the file at that path does not change "
        "until the last epoch is over. If the machine fails earlier, all epochs are lost. Save the "
        "state there at least once in each epoch.",
        guide=GUIDE,
    )


def check_exists(exists):
    check(
        exists,
        "resume-lost",
        "After a training run with `resume_from`, there is no file at that path. Save the state "
        "there at least once in each epoch.",
        guide=GUIDE,
    )


@exercise("phase2/train", points=0.25)
def test_a_failed_write_keeps_the_old_file(ranks):
    """The old file stays until the new one is complete, even if the disk is full."""

    def probe(trainer):
        run_training(trainer, 0, 1, epochs=1)
        here = Path.cwd() / "there.pt"
        previous, changes = here.exists(), file_changes()
        run_training(trainer, 0, 1, epochs=2)
        gone = previous and any(path == here and done in HARMS for done, path in changes)
        before = Path("there.pt").read_bytes() if os.path.exists("there.pt") else None
        limit_writes(20_000)
        raised(lambda: run_training(trainer, 0, 1, epochs=3))  # any error, or none, is accepted
        after = Path("there.pt")
        return [gone, before is not None and after.exists() and after.read_bytes() == before]

    [[gone, same]] = ranks(probe, 1, **LIMIT)

    check(
        not gone,
        "not-atomic",
        "train deletes or empties the old file of `resume_from` before the new one replaces it. If "
        "it is killed in between, there is no file to resume from. Complete the new file first, "
        "and then replace the old one in one atomic step.",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        same,
        "not-atomic",
        "Writing the file of `resume_from` failed halfway, as on a full disk, and the file of the "
        "previous epoch is lost, so there is no file to resume from. Keep the old file until the "
        "new one is complete.",
        ranks=[0],
        guide=GUIDE,
    )


@exercise("phase2/train", points=0.25)
def test_code_in_the_file_is_not_run(ranks):
    """Code in the file of `resume_from` is not run."""

    def probe(trainer, files):
        run_training(trainer, 0, 1, epochs=1)
        kept = os.path.exists("there.pt")
        for content in files:
            Path("there.pt").write_bytes(content)
            raised(lambda: run_training(trainer, 0, 1, epochs=1))  # refusing the file is correct
        return [kept, os.path.exists("ran")]

    files = files_with_code({"model": {}, "epoch": 1})
    [[kept, ran]] = ranks(
        probe, 1, timeout=len(files) * LIMIT["timeout"], promised=True, files=files
    )

    check_exists(kept)
    check(
        ran is False,
        "unsafe-load",
        "train ran code from the file of `resume_from`. A file from another source could do "
        "anything. Load it with weights_only=True.",
        ranks=[0],
        guide=GUIDE,
    )
