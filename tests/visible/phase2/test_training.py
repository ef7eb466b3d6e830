"""Visible tests of training: few samples, and an interruption."""

import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import check, exercise
from gradsync.testing.values import close
from gradsync.text import counted
from support.probes import Info
from support.probes.printing import printed

GUIDE = "Resuming"
COUNT, EPOCHS = 12, 3


class Line(nn.Linear):
    """A classifier of points on a line, interrupted before the sample with number `stop_at`."""

    def __init__(self, stop_at=None):
        super().__init__(1, 2)
        self.trained, self.stop_at = 0, stop_at  # numbers of samples
        self.largest = 0  # the size of the largest batch in training

    def forward(self, places):
        if self.training:
            if self.trained == self.stop_at:
                raise KeyboardInterrupt
            self.trained += len(places)
            self.largest = max(self.largest, len(places))
        return super().forward(places)


def run_training(trainer, info, seed, stop_at=None, **options):
    """Call `train` with a new model; return a description of the training run."""
    torch.manual_seed(seed)
    places = torch.linspace(-1, 1, COUNT)[:, None]  # (point, 1)
    data = TensorDataset(places, (places[:, 0] > 0).long())
    model, history = Line(stop_at), []
    with printed() as lines, contextlib.suppress(KeyboardInterrupt):
        history = trainer.train(info, model, data, data, epochs=EPOCHS, lr=0.5, **options)
    dist.barrier()  # rank 0 may still be writing
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    epochs = [int(row["epoch"]) for row in history]
    counts = {"lines": len(lines), "trained": model.trained, "largest": model.largest}
    return {"weights": weights, "epochs": epochs, **counts}


@exercise("phase2/train", points=1)
def test_two_ranks_train_one_model(ranks):
    """The ranks end with equal weights, even with microbatches, and only rank 0 prints."""

    def probe(rank, world_size, trainer):
        info = Info(rank, world_size)
        whole = run_training(trainer, info, rank, batch_size=4)
        return [whole, run_training(trainer, info, rank, batch_size=4, accumulation_steps=3)]

    seen = ranks(probe, world_size=2)

    whole, parts = seen[0]
    check(
        all(close(run["weights"], whole["weights"]) for run in seen[1][:1]),
        "models-differ",
        "After training, the ranks have different weights. They must start with rank 0's weights, "
        "and take the same steps.",
        ranks=range(2),
        guide=GUIDE,
    )
    check(
        whole["largest"] == 4,
        "batch-size-divided",
        f"With batch_size=4 and 6 samples on each of 2 ranks, rank 0 trains on {whole['largest']} "
        "samples at once, but should train on 4 and then 2. `batch_size` is the batch size of each "
        "rank: do not divide it.",
        guide=GUIDE,
    )
    check(
        close(parts["weights"], whole["weights"]),
        "differs-from-single-process",
        "If each batch is split into 3 microbatches, training ends with different weights than "
        "without them. Weight each microbatch by its samples.",
        ranks=range(2),
        guide="Gradient accumulation",
    )
    lines = [value[0]["lines"] for value in seen]
    check(
        lines[0] >= EPOCHS and lines[1] == 0,
        "every-rank-prints",
        f"In {EPOCHS} epochs, rank 0 printed {counted(lines[0], 'line')} and rank 1 {lines[1]}. "
        "Only rank 0 must print, at least one line for each epoch.",
        guide=GUIDE,
    )


@exercise("phase2/train", points=1)
def test_an_interrupted_training_resumes(ranks):
    """An interrupted run that is resumed ends with the weights of a run without interruption."""

    def probe(rank, world_size, trainer):
        info, path = Info(rank, world_size), Path("progress.pt")
        whole = run_training(trainer, info, 1, batch_size=2)
        run_training(trainer, info, 1, stop_at=8, batch_size=2, resume_from=path)
        exists = path.exists()
        return [whole, exists, run_training(trainer, info, 2, batch_size=2, resume_from=path)]

    seen = ranks(probe, world_size=2)

    whole, exists, second = seen[0]
    check(
        exists,
        "resume-lost",
        "A training run was interrupted in its second epoch, and there is no file at the path of "
        "`resume_from`. Save the state there at least once in each epoch.",
        guide=GUIDE,
    )
    check(
        second["epochs"] == [1, 2],
        "resume-lost",
        f"A training run was interrupted in epoch 1 (counted from 0) of {EPOCHS}. When it resumes, "
        f"it returns a history of the epochs {second['epochs']}, but should return [1, 2].",
        guide=GUIDE,
    )
    check(
        close(second["weights"], whole["weights"]),
        "state-lost",
        "A training run that was interrupted and resumed ends with different weights than one "
        f"without interruption. A rank uses {whole['trained']} samples in all, and used "
        f"{second['trained']} after the interruption. Save everything that the next steps need.",
        ranks=range(2),
        guide=GUIDE,
    )
