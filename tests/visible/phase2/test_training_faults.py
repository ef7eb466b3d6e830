"""Visible tests of a training run that loses a rank."""

import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import check, exercise
from support.probes import Info
from support.probes.printing import printed

GUIDE = "When a rank dies"
EPOCHS, STEPS = 2, 4  # steps per epoch
LIMIT = 65  # seconds: the other ranks must end within 60


class Mortal(nn.Module):
    """A linear model whose process is killed at one of the steps."""

    def __init__(self, dies_at):
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.process, self.steps, self.dies_at = os.getpid(), 0, dies_at

    def forward(self, inputs):
        if self.training:
            if self.steps == self.dies_at:
                os.kill(self.process, signal.SIGKILL)
            self.steps += 1
        return self.layer(inputs)


@exercise("phase2/train", points=1)
def test_a_rank_is_killed_in_the_second_epoch(ranks):
    """If rank 1 of 2 is killed, rank 0 ends with an error, and leaves a file."""

    def probe(rank, world_size, trainer):
        places = torch.linspace(-1, 1, 2 * STEPS)[:, None]  # (point, 1)
        data = TensorDataset(places, (places[:, 0] > 0).long())
        model, failed = Mortal(dies_at=STEPS + 2 if rank == 1 else None), False
        options = {"epochs": EPOCHS, "batch_size": 1, "lr": 0.1, "resume_from": "progress.pt"}
        try:
            with printed():
                trainer.train(Info(rank, world_size), model, data, data, **options)
        except NotImplementedError:
            raise
        except Exception:  # noqa: BLE001 - any error is right
            failed = True
        return {"failed": failed, "exists": Path("progress.pt").exists()}

    seen = ranks(probe, world_size=2, may_fail=[1], timeout=LIMIT, promised=True)

    check(
        seen[0]["failed"],
        "error-swallowed",
        "Rank 1 was killed in the middle of training, but train returned normally on rank 0. It "
        "must end with an error.",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        seen[0]["exists"],
        "resume-lost",
        "Rank 1 was killed in the second epoch, and there is no file at the path of "
        "`resume_from`. Save the state there at least once in each epoch.",
        guide=GUIDE,
    )
