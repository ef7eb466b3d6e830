"""The output and the records of rank 0 while the ranks train."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist

from gradsync.launch import artifacts
from gradsync.launch.rank_errors import LaunchedWrongly
from gradsync.launch.settings import Settings
from gradsync.text import counted

Entry = dict[str, Any]  # "epoch", "train_loss", "val_loss", "val_accuracy"


class Progress:
    """The output of a run. Every rank calls these methods, but only rank 0 prints and writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._history: list[Entry] = []
        self._since = time.monotonic()
        self.is_rank_0 = os.environ["RANK"] == "0"

    def started(self, master: str, samples: int) -> None:
        """Print the header: backend, number of processes, master, samples of each rank."""
        counts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(counts, (samples, os.environ["LOCAL_RANK"]))
        if not self.is_rank_0:
            return
        nodes = sum(local == "0" for _, local in counts)
        where = f" on {nodes} nodes" if nodes > 1 else ""
        backend = dist.get_backend()
        processes = counted(len(counts), "process", "processes")
        self._say(f"Distributed training: {backend} backend, {processes}{where}")
        self._say(f"Master: {master}")
        for rank, (count, _) in enumerate(counts):
            self._say(f"[Rank {rank}] Training samples: {count}")

    def continues(self, first: int) -> None:
        """Check that all ranks begin with the epoch `first`, and print it if it is not 0.

        Raises:
            LaunchedWrongly: the ranks disagree, because not all of them see the checkpoint.
        """
        firsts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(firsts, first)
        path = self._settings.checkpoint
        if len(set(firsts)) > 1:
            blind = [rank for rank, epoch in enumerate(firsts) if epoch != max(firsts)]
            raise LaunchedWrongly(
                f"Rank {blind[0]} can't see the checkpoint {path.absolute()} that another rank "
                "continues from. Put --out on a file system that all nodes share."
            )
        if not self.is_rank_0:
            return
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if restart:
            self._say(f"Restart {restart} of at most {self._settings.max_restarts}")
        if first:
            self._history = artifacts.read_history(self._settings)[:first]
            self._say(f"Continuing after epoch {first}, from {path}")
        self._since = time.monotonic()

    def ended_epoch(
        self, epoch: int, train_loss: float, *, loss: float, accuracy: float, **_others: Any
    ) -> None:
        """Print a line and record the epoch: training loss, and validation loss and accuracy."""
        entry = {"epoch": epoch, "train_loss": train_loss}
        entry |= {"val_loss": loss, "val_accuracy": accuracy}
        if self.is_rank_0:
            now = time.monotonic()
            seconds, self._since = now - self._since, now
            self._history.append(entry)
            artifacts.write_history(self._settings, self._history)
            self._say(
                f"Epoch {entry['epoch'] + 1}/{self._settings.epochs} - "
                f"Train: {entry['train_loss']:.6f}, Val: {entry['val_loss']:.6f}, "
                f"accuracy {entry['val_accuracy']:.2%}, {seconds:.1f} s"
            )

    def ended(self, history: list[Entry]) -> None:
        """Record the epochs that the trainer itself has printed; keep the earlier ones."""
        if not self.is_rank_0:
            return
        if not history:
            self._say(
                f"No epoch was left to train: {self._settings.checkpoint} has "
                f"{self._settings.epochs} epochs or more. To start again, add --fresh."
            )
            return
        known = artifacts.read_history(self._settings)
        earlier = [entry for entry in known if entry["epoch"] < history[0]["epoch"]]
        artifacts.write_history(self._settings, earlier + history)

    def _say(self, text: str) -> None:
        print(text, flush=True)
