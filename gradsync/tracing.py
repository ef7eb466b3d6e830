"""Observe a few steps of a learner's `train` on N ranks."""

from __future__ import annotations

from typing import Any

from gradsync.course import Course
from gradsync.plugin import Ranks
from gradsync.probes import Info
from gradsync.ranks import RankFailure, get_launcher
from gradsync.records import Observation
from gradsync.submission import Submission
from gradsync.workplace import unpacked

STEPS, BATCH = 4, 50  # on each rank: enough to show a pattern, few enough to be readable
SECONDS = 120.0


def trace(submission: Submission, course: Course, phase: str, world_size: int) -> Observation:
    """Train the small CNN for some steps with the submission's `train`, on handwritten digits.

    Returns:
        The observation, also if the ranks failed.

    Raises:
        MissingFile: the submission has no trainer for this phase.
    """
    from gradsync.data import digits

    some = digits().train.first(STEPS * BATCH * world_size)
    with unpacked(submission.files) as folder:
        ranks = Ranks(
            get_launcher(),
            folder,
            course,
            phase,
            seen=[],
            seed="trace",
            refused=submission.refused,
        )
        try:
            return ranks(
                train_a_little,
                world_size,
                timeout=SECONDS,
                images=some.images.numpy(),
                labels=some.labels.numpy(),
            )
        except RankFailure as failed:
            return failed.observation


def train_a_little(rank: int, world_size: int, trainer: Any, images: Any, labels: Any) -> None:
    """Run one short epoch; each rank calls this."""
    import torch
    from torch.utils.data import Subset, TensorDataset

    from gradsync.model import SmallCNN

    known = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    few = Subset(known, range(world_size))
    trainer.train(
        Info(rank, world_size), SmallCNN(), known, few, epochs=1, batch_size=BATCH, lr=0.1
    )
