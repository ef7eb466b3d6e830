"""The settings of a training run, which are passed to each rank as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """A trainer, its data and its hyperparameters."""

    course: Path  # the course's root
    phase: str  # "phase1"
    trainer: Path  # the file with the trainer; its data loader is beside it
    out: Path  # the folder for the checkpoint, the history, the plot and the exported model
    epochs: int = 5
    batch_size: int = 50  # of one rank
    lr: float = 0.1
    samples: int = 10_000  # of the training set
    seed: int = 0
    timeout: int = 60  # seconds that a rank waits for the others
    max_restarts: int = 0
    test_links: bool = False  # test the links between the ranks instead of training
    fresh: bool = False  # the command has --fresh: it does not continue from a checkpoint
    saved: str = "checkpoint.pt"  # the name of the checkpoint, a file or a folder

    @property
    def checkpoint(self) -> Path:
        return self.out / self.saved

    @property
    def rejected(self) -> Path:
        return self.out / f"rejected{Path(self.saved).suffix}"

    @property
    def record(self) -> Path:
        return self.out / "settings.json"

    @property
    def history(self) -> Path:
        return self.out / "history.json"

    @property
    def plot(self) -> Path:
        return self.out / "curves.png"

    @property
    def exported(self) -> Path:
        return self.out / "model.pt2"

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that `to_json` wrote."""
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("course", "trainer", "out")}
        return cls(**{**values, **paths})
