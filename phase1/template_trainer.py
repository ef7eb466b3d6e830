"""Phase 1, second file: train one model on N ranks as if it were one process.

Every function takes the default process group as given, except `setup_distributed`,
`cleanup_distributed` and `read_rank_info`. N is the world size, r this rank.
Read GUIDELINES.md from "Launching ranks" on; `gradsync check` says how far you are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from template_data_loader import create_dataloaders

LossFunction = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RankInfo:
    """Who this process is among all, and where they meet."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
    """Return who this process is, from a launcher's environment variables; a pure function.

    torchrun's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT win. Else Slurm's
    SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID, with MASTER_PORT, and the master address from
    MASTER_ADDR or else the first host of SLURM_JOB_NODELIST: `node[01-04,07],big1` gives `node01`.
    Else this is a single process. Defaults: local rank 0, 127.0.0.1, port 29500.

    RANK or WORLD_SIZE shows that torchrun is the launcher, SLURM_PROCID or SLURM_NTASKS that Slurm
    is. LOCAL_RANK, MASTER_ADDR or MASTER_PORT alone shows no launcher.

    Raises:
        ValueError: naming the variable, for half a set (a rank without a world size, or the
            reverse; half of torchrun's set also beside a whole set of Slurm's), for a value that
            is not an integer, and for a rank outside the world.
    """
    # TODO: about 14 lines; `gradsync hint read_rank_info` if you are stuck
    raise NotImplementedError("phase1/read_rank_info")


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    """Start the default process group and return this rank's device.

    It returns only when every rank is up. Each rank on a machine gets its own device: GPU
    `local_rank` if there are GPUs, else the CPU.

    Args:
        info: who this process is.
        backend: None takes nccl where CUDA is available, else gloo.
        timeout: how long a collective, and this meeting, may wait for the other ranks.
    """
    # TODO: about 13 lines; `gradsync hint setup_distributed` if you are stuck
    raise NotImplementedError("phase1/setup_distributed")


def cleanup_distributed() -> None:
    """End the default process group; harmless if there is none."""
    # TODO: about 2 lines; `gradsync hint cleanup_distributed` if you are stuck
    raise NotImplementedError("phase1/cleanup_distributed")


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    """Make every parameter and every buffer equal rank `src`'s, bit for bit.

    The parameters and buffers stay the same objects, since an optimizer may hold them already.
    They may use other memory than before. Gradients and `requires_grad` stay as they are.
    """
    # TODO: about 4 lines; `gradsync hint broadcast_model` if you are stuck
    raise NotImplementedError("phase1/broadcast_model")


def average_gradients(model: nn.Module) -> None:
    """Replace every rank's gradients by their mean over ranks.

    A trainable parameter without a gradient on some ranks counts as zero there: every rank takes
    part in every collective. Frozen parameters are left alone.
    """
    # TODO: about 7 lines; `gradsync hint average_gradients` if you are stuck
    raise NotImplementedError("phase1/average_gradients")


def train_step(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer
) -> float:
    """Take one optimizer step on this rank's batch, with averaged gradients.

    N ranks of B samples end where one process with their N*B samples would.

    Args:
        model: the same on every rank.
        batch: this rank's `(inputs, targets)`, B samples each; moved to the model's device here.
        loss_fn: from outputs and targets to the mean loss of the batch.
        optimizer: over the model's parameters.

    Returns:
        The loss, mean over ranks.
    """
    # TODO: about 10 lines; `gradsync hint train_step` if you are stuck
    raise NotImplementedError("phase1/train_step")


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    """Train on every batch of the loader once, in training mode.

    Sets the epoch of the loader's sampler, if the sampler has `set_epoch`.

    Returns:
        The epoch's mean loss over all ranks' samples, those of the padding too: a smaller last
        batch weighs less.
    """
    # TODO: about 9 lines; `gradsync hint train_epoch` if you are stuck
    raise NotImplementedError("phase1/train_epoch")


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    """Return `{"loss", "accuracy", "samples"}` over all ranks' samples, the same on every rank.

    Ranks and batches of unequal size weigh by their samples, and a rank may have none. The
    accuracy lies in 0..1. The dict may have more keys. The model is not changed: no gradients,
    evaluation mode, and each module's former mode put back.
    """
    # TODO: about 17 lines; `gradsync hint evaluate` if you are stuck
    raise NotImplementedError("phase1/evaluate")


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    """Have rank 0 write model, optimizer and epoch to `path`, whole or not at all.

    A crash midway leaves the former file as it was. When the call returns, the file is there for
    every rank.
    """
    # TODO: about 14 lines; `gradsync hint save_checkpoint` if you are stuck
    raise NotImplementedError("phase1/save_checkpoint")


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Put a checkpoint's state into model and optimizer, and return its epoch.

    Each rank reads for itself: no collective, no process group. Code in the file is never run.
    """
    # TODO: about 4 lines; `gradsync hint load_checkpoint` if you are stuck
    raise NotImplementedError("phase1/load_checkpoint")


def train(
    info: RankInfo,
    model: nn.Module,
    train_dataset: Dataset,
    val_dataset: Dataset,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Train a model on all ranks with SGD and cross-entropy, starting from rank 0's weights.

    Rank 0 alone prints: a line for each epoch, and a header or a summary if you like. The train
    sampler's epochs are 0, 1, and so on. SGD may have momentum.

    Args:
        info: who this process is.
        model: on its device; its weights need not be the same on every rank yet.
        train_dataset: samples to train on.
        val_dataset: samples to evaluate on after each epoch.
        epochs: how often to go through the training samples.
        batch_size: of one rank.
        lr: the learning rate.
        seed: of the shuffling.

    Returns:
        For each epoch `{"epoch", "train_loss", "val_loss", "val_accuracy"}`, with the val numbers
        after the epoch's training. Epochs count from 0. An entry may have more keys.
    """
    # TODO: about 29 lines; `gradsync hint train` if you are stuck
    raise NotImplementedError("phase1/train")


def main() -> None:
    """Train the small CNN on MNIST: `torchrun --nproc_per_node 2 phase1/template_trainer.py`."""
    # Imported while there is no group: its defaults keep the one that they find, for good. Else an
    # optimizer imports it later, the group's threads outlive the group's end, and one that frees a
    # tensor while Python ends aborts the process.
    import torch.distributed.nn.functional  # noqa: F401

    from gradsync.data import digits
    from gradsync.model import SmallCNN

    info = read_rank_info(os.environ)
    device = setup_distributed(info)
    data = digits()
    train(
        info,
        SmallCNN().to(device),
        data.train.first(10_000),
        data.test,
        epochs=5,
        batch_size=50,
        lr=0.1,
    )
    cleanup_distributed()


if __name__ == "__main__":
    main()
