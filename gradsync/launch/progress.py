"""The output and the records of rank 0 while the ranks train."""

from __future__ import annotations

import os
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

    def continues(self, *, resumes: bool) -> None:
        """Print from which checkpoint the ranks continue, if there is one and the trainer can.

        Raises:
            LaunchedWrongly: only some ranks see the checkpoint.
        """
        path = self._settings.checkpoint
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, path.exists())
        if len(set(found)) > 1:
            raise LaunchedWrongly(
                f"Rank {found.index(False)} can't see the checkpoint {path.absolute()} that "
                "another rank continues from. Put --out on a file system that all nodes share."
            )
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        if self.is_rank_0 and restart:
            self._say(f"Restart {restart} of at most {self._settings.max_restarts}")
        if self.is_rank_0 and resumes and found[0]:
            self._say(f"Continuing from {path}")

    def ended(self, history: list[Entry]) -> None:
        """Record the epochs or steps that `train` returned; keep those of an earlier command."""
        if not self.is_rank_0:
            return
        if not history:
            self._say(
                f"No epoch was left to train: {self._settings.checkpoint} has "
                f"{self._settings.epochs} epochs or more. To start again, add --fresh."
            )
            return
        known = artifacts.read_history(self._settings)
        unit = "step" if "step" in history[0] else "epoch"
        earlier = [entry for entry in known if entry[unit] < history[0][unit]]
        artifacts.write_history(self._settings, earlier + history)

    def _say(self, text: str) -> None:
        print(text, flush=True)
