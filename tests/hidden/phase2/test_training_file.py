"""The file that a training leaves to go on from: who writes it, how, and how it is read."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.diagnose.checkpoints import writes_too
from gradsync.probes import Info, raised
from gradsync.probes.files import HARMS, file_changes, files_with_code, limit_writes
from gradsync.probes.seeding import seed_weights
from gradsync.probes.training import TIME_TO_END
from gradsync.testing import check, exercise

GUIDE = "Resuming"
LIMIT = 20 + TIME_TO_END  # seconds for a run in which train raises: it may look for lost ranks
WIDTH = 3000  # of the hidden layer: the model's file has 190 kB, and a batch few bytes


def go(trainer, rank, world_size, epochs):
    """Train a large model on few samples, a step an epoch, with a file."""
    seed_weights(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)).double()
    data = TensorDataset(torch.rand(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    options = {"epochs": epochs, "batch_size": 6, "lr": 0.01, "resume_from": "there.pt"}
    trainer.train(Info(rank, world_size), model, data, data, **options)


@exercise("phase2/train", points=0.25)
def test_rank_0_alone_writes(ranks):
    """The other ranks write nothing, and the file is there in the end."""

    def probe(rank, world_size, trainer):
        if rank != 0:  # a write by another rank runs into this limit
            limit_writes(20_000)
        go(trainer, rank, world_size, epochs=2)
        return os.path.exists("there.pt")

    seen = ranks(probe, 2, mistakes=[writes_too(GUIDE)])

    hold_kept(seen[0])


def hold_kept(is_there):
    check(
        is_there,
        "resume-lost",
        "after a training with `resume_from` there is no file at that path",
        guide=GUIDE,
    )


@exercise("phase2/train", points=0.25)
def test_a_crash_midway_leaves_the_former_file(ranks):
    """The file from before is there until the new one is, also when the disk fills up."""

    def probe(trainer):
        go(trainer, 0, 1, epochs=1)
        here = Path.cwd() / "there.pt"
        former, changes = here.exists(), file_changes()
        go(trainer, 0, 1, epochs=2)
        gone = former and any(path == here and done in HARMS for done, path in changes)
        before = Path("there.pt").read_bytes() if os.path.exists("there.pt") else None
        limit_writes(20_000)
        raised(lambda: go(trainer, 0, 1, epochs=3))  # how a full disk is told is not judged
        after = Path("there.pt")
        return [gone, before is not None and after.exists() and after.read_bytes() == before]

    [[gone, same]] = ranks(probe, 1, timeout=LIMIT)

    check(
        not gone,
        "not-atomic",
        "train takes the former file of `resume_from` away, or empties it, before the new one is "
        "in its place: killed in between, it leaves nothing to go on from. The complete new file "
        "has to take the former's place in one go",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        same,
        "not-atomic",
        "writing the file of `resume_from` broke off halfway, as on a full disk, and the one from "
        "the epoch before is lost: now there is nothing to go on from. The former file has to stay "
        "until the new one is complete",
        ranks=[0],
        guide=GUIDE,
    )


@exercise("phase2/train", points=0.25)
def test_code_in_the_file_is_not_run(ranks):
    """A file with code in it is not run."""

    def probe(trainer, files):
        go(trainer, 0, 1, epochs=1)
        kept = os.path.exists("there.pt")
        for content in files:
            Path("there.pt").write_bytes(content)
            raised(lambda: go(trainer, 0, 1, epochs=1))  # refusing it is right
        return [kept, os.path.exists("ran")]

    files = files_with_code({"model": {}, "epoch": 1})
    [[kept, ran]] = ranks(probe, 1, timeout=LIMIT * len(files), files=files)

    hold_kept(kept)
    check(
        ran is False,
        "unsafe-load",
        "train ran code that was in the file of `resume_from`: a file from elsewhere could do "
        "anything. Only tensors and plain values may be read",
        ranks=[0],
        guide=GUIDE,
    )
