"""The file from which a training resumes: which rank writes it, how, and how it is read."""

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
LIMIT = 20 + TIME_TO_END  # seconds for a run in which train raises: it may search for lost ranks
WIDTH = 3000  # of the hidden layer: the model's file has 190 kB, but a batch only a few bytes


def run_training(trainer, rank, world_size, epochs):
    """Train a large model on few samples, one step per epoch, with a file."""
    seed_weights(0)
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 3)).double()
    data = TensorDataset(torch.rand(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    options = {"epochs": epochs, "batch_size": 6, "lr": 0.01, "resume_from": "there.pt"}
    trainer.train(Info(rank, world_size), model, data, data, **options)


@exercise("phase2/train", points=0.25)
def test_only_rank_0_writes(ranks):
    """Only rank 0 writes the file of `resume_from`, and it exists after the training."""

    def probe(rank, world_size, trainer):
        if rank != 0:  # a write by another rank exceeds this limit
            limit_writes(20_000)
        run_training(trainer, rank, world_size, epochs=2)
        return os.path.exists("there.pt")

    seen = ranks(probe, 2, mistakes=[writes_too(GUIDE)])

    hold_exists(seen[0])


def hold_exists(exists):
    check(
        exists,
        "resume-lost",
        "After a training with `resume_from`, there is no file at that path. Save the training "
        "there at least once in each epoch.",
        guide=GUIDE,
    )


@exercise("phase2/train", points=0.25)
def test_a_failed_write_keeps_the_old_file(ranks):
    """The old file stays until the new one is complete, also if the disk is full."""

    def probe(trainer):
        run_training(trainer, 0, 1, epochs=1)
        here = Path.cwd() / "there.pt"
        former, changes = here.exists(), file_changes()
        run_training(trainer, 0, 1, epochs=2)
        gone = former and any(path == here and done in HARMS for done, path in changes)
        before = Path("there.pt").read_bytes() if os.path.exists("there.pt") else None
        limit_writes(20_000)
        raised(lambda: run_training(trainer, 0, 1, epochs=3))  # any error, or none, is accepted
        after = Path("there.pt")
        return [gone, before is not None and after.exists() and after.read_bytes() == before]

    [[gone, same]] = ranks(probe, 1, timeout=LIMIT)

    check(
        not gone,
        "not-atomic",
        "train deletes or empties the old file of `resume_from` before the new one is in its "
        "place. If it is killed in between, there is no file to resume from. Complete the new file "
        "first, and then replace the old one in one atomic step.",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        same,
        "not-atomic",
        "Writing the file of `resume_from` failed halfway, as on a full disk, and the file of the "
        "epoch before is lost. Then there is no file to resume from. Keep the old file until the "
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
            raised(lambda: run_training(trainer, 0, 1, epochs=1))  # refusing the file is right
        return [kept, os.path.exists("ran")]

    files = files_with_code({"model": {}, "epoch": 1})
    [[kept, ran]] = ranks(probe, 1, timeout=LIMIT * len(files), files=files)

    hold_exists(kept)
    check(
        ran is False,
        "unsafe-load",
        "train ran code from the file of `resume_from`. A file from another source could do "
        "anything. Load it with weights_only=True.",
        ranks=[0],
        guide=GUIDE,
    )
