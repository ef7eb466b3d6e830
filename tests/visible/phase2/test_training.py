"""What `gradsync check` tries on evaluation and training: few samples, and an interruption."""

import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.diagnose.values import close
from gradsync.probes import Info
from gradsync.probes.evaluation import numbers
from gradsync.probes.printing import printed
from gradsync.testing import assert_on_every_rank, check, exercise, would_be

GUIDE, EVALUATION = "Resuming", "Evaluation without padding"
COUNT, EPOCHS = 12, 3


class Same(nn.Module):
    """A model whose outputs are its inputs."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return inputs


@exercise("phase2/evaluate", points=1)
def test_five_samples_on_two_ranks(ranks):
    """Outputs 0 to 4 for targets 0 have the mean 2, over 5 samples, on both ranks."""

    def probe(trainer):
        outputs = torch.arange(5.0)
        data = TensorDataset(torch.stack([outputs, -outputs - 1], dim=1), torch.zeros(5).long())

        def first_output(outputs, targets):
            return outputs[:, 0].mean()

        return numbers(trainer.evaluate(Same(), data, first_output, 2))

    seen = ranks(probe, world_size=2)

    mistakes = [
        would_be(
            [{"loss": 10 / 6, "accuracy": 1.0, "samples": 6}] * 2,
            "samples-repeated",
            "6 samples count, where the dataset has 5: the first one counts twice, as padding",
            EVALUATION,
        ),
    ]
    assert_on_every_rank(
        seen,
        {"loss": 2.0, "accuracy": 1.0, "samples": 5},
        mistakes=mistakes,
        otherwise=f"evaluate returns {list(seen)} by rank, but on both the loss should be 2, the "
        "accuracy 1, the samples 5",
    )


class Line(nn.Linear):
    """Parts a line into two classes; the plug is pulled before the sample of that number."""

    def __init__(self, stop_at=None):
        super().__init__(1, 2)
        self.trained, self.stop_at = 0, stop_at  # samples
        self.largest = 0  # batch that it is trained on at once

    def forward(self, places):
        if self.training:
            if self.trained == self.stop_at:
                raise KeyboardInterrupt
            self.trained += len(places)
            self.largest = max(self.largest, len(places))
        return super().forward(places)


def go(trainer, info, seed, stop_at=None, **options):
    """Call `train` with a model of its own; say what came of it."""
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
    """From different weights both ranks come to the same, in microbatches too; rank 0 prints."""

    def probe(rank, world_size, trainer):
        info = Info(rank, world_size)
        whole = go(trainer, info, rank, batch_size=4)
        return [whole, go(trainer, info, rank, batch_size=4, accumulation_steps=3)]

    seen = ranks(probe, world_size=2)

    whole, parts = seen[0]
    check(
        all(close(run["weights"], whole["weights"]) for run in seen[1][:1]),
        "models-differ",
        "after training the ranks have different weights: they have to start from rank 0's, and "
        "to take the same steps",
        ranks=range(2),
        guide=GUIDE,
    )
    check(
        whole["largest"] == 4,
        "batch-size-divided",
        f"with batch_size=4 and 6 samples on each of 2 ranks, train takes {whole['largest']} "
        "samples at once on rank 0, but should take 4 and then 2: `batch_size` is that of one rank",
        guide=GUIDE,
    )
    check(
        close(parts["weights"], whole["weights"]),
        "differs-from-single-process",
        "with batches taken in 3 microbatches training ends with other weights than without",
        ranks=range(2),
        guide="Gradient accumulation",
    )
    lines = [value[0]["lines"] for value in seen]
    check(
        lines[0] >= EPOCHS and lines[1] == 0,
        "every-rank-prints",
        f"during {EPOCHS} epochs rank 0 printed {lines[0]} lines and rank 1 {lines[1]}: rank 0 "
        "alone prints, at least a line for each epoch",
        guide=GUIDE,
    )


@exercise("phase2/train", points=1)
def test_an_interrupted_training_goes_on(ranks):
    """Interrupted in the second of 3 epochs and called again, it ends with the same weights."""

    def probe(rank, world_size, trainer):
        info, path = Info(rank, world_size), Path("progress.pt")
        whole = go(trainer, info, 1, batch_size=2)
        go(trainer, info, 1, stop_at=8, batch_size=2, resume_from=path)
        there = path.exists()
        return [whole, there, go(trainer, info, 2, batch_size=2, resume_from=path)]

    seen = ranks(probe, world_size=2)

    whole, there, second = seen[0]
    check(
        there,
        "resume-lost",
        "a training was interrupted in its second epoch and has left no file at the path of "
        "`resume_from`",
        guide=GUIDE,
    )
    check(
        second["epochs"] == [1, 2],
        "resume-lost",
        f"a training that was interrupted in epoch 1 of {EPOCHS} goes on, and returns a history of "
        f"the epochs {second['epochs']}, but should have ended 1 and 2",
        guide=GUIDE,
    )
    check(
        close(second["weights"], whole["weights"]),
        "state-lost",
        "a training that was interrupted, and went on, ends with other weights than one that was "
        f"not: of {whole['trained']} samples a rank it took {second['trained']} after the "
        "interruption",
        ranks=range(2),
        guide=GUIDE,
    )
