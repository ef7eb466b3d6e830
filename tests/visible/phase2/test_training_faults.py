"""What `gradsync check` tries on a training that loses a rank."""

import os
import re
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.probes import Info
from gradsync.probes.printing import printed
from gradsync.testing import check, exercise

GUIDE = "When a rank dies"
EPOCHS, STEPS = 2, 4  # steps of an epoch
LIMIT = 65  # seconds: the other ranks have to end within 60


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
    """Rank 1 of 2 is killed: rank 0 ends with an error that says so, and leaves its file."""

    def probe(rank, world_size, trainer):
        places = torch.linspace(-1, 1, 2 * STEPS)[:, None]  # (point, 1)
        data = TensorDataset(places, (places[:, 0] > 0).long())
        model, said = Mortal(dies_at=STEPS + 2 if rank == 1 else None), None
        options = {"epochs": EPOCHS, "batch_size": 1, "lr": 0.1, "resume_from": "progress.pt"}
        try:
            with printed():
                trainer.train(Info(rank, world_size), model, data, data, **options)
        except NotImplementedError:
            raise
        except Exception as error:  # noqa: BLE001 - the checks below judge it
            said = str(error)
        return {"said": said, "there": Path("progress.pt").exists()}

    seen = ranks(probe, world_size=2, casualties=[1], timeout=LIMIT)

    check(
        seen[0]["said"] is not None,
        "error-swallowed",
        "rank 1 was killed in the middle of training, and on rank 0 train returned as if all were "
        "well: it should end with an error",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        seen[0]["there"],
        "resume-lost",
        "rank 1 was killed in the second epoch, and there is no file at the path of "
        "`resume_from` to go on from",
        guide=GUIDE,
    )
    check(
        re.search(r"rank(s|\(s\))?\W{0,4}1\b", seen[0]["said"].lower()) is not None,
        "rank-not-named",
        f'rank 1 was killed, and rank 0 ends with "{seen[0]["said"][-200:]}": the error should say '
        f'"rank 1", so that its reader knows where to look',
        ranks=[0],
        guide=GUIDE,
    )
