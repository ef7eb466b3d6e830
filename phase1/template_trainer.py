"""Phase 1, second file: train one model on N ranks as if there were one process.

Every function except `read_rank_info`, `setup_distributed`, `cleanup_distributed` and
`load_checkpoint` uses the default process group, which already exists. N is the world size, r is
this rank. Read GUIDELINES.md from "Launching ranks" on. `gradsync check` shows your progress.
"""

from __future__ import annotations

import os
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
    """The rank of this process, the world size, and the address at which the ranks connect."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
    """Return this process's `RankInfo`, from a launcher's environment variables.

    The function is pure: it reads only `environ`. It checks these cases in this order:

    - torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
    - Slurm: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and MASTER_PORT. The master address is
      MASTER_ADDR, or else the first host of SLURM_JOB_NODELIST: `node[01-04,07],big1` gives
      `node01`.
    - No launcher: a single process.

    The defaults are local rank 0, address 127.0.0.1 and port 29500. If RANK or WORLD_SIZE is set,
    the launcher is torchrun; else if SLURM_PROCID or SLURM_NTASKS is set, it is Slurm. If only
    LOCAL_RANK, MASTER_ADDR or MASTER_PORT is set, there is no launcher.

    Raises:
        ValueError: if a launcher's rank is set without its world size, or the reverse (for
            torchrun, even if Slurm's variables are complete), if a value is not an integer, or if
            the rank is not in 0..world_size-1. The message names the variable.
    """
    # TODO: about 14 lines; `gradsync hint read_rank_info` if you are stuck
    raise NotImplementedError("phase1/read_rank_info")


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    """Start the default process group and return this rank's device.

    The function returns only when every rank has joined the group. Each rank on a machine gets its
    own device: GPU `local_rank` if there are GPUs, else the CPU.

    Args:
        info: this process's rank, the world size and the address.
        backend: the backend; None means nccl if CUDA is available, else gloo.
        timeout: how long this function, and later each collective, may wait for the other ranks.
    """
    # TODO: about 13 lines; `gradsync hint setup_distributed` if you are stuck
    raise NotImplementedError("phase1/setup_distributed")


def cleanup_distributed() -> None:
    """End the default process group, or do nothing if there is none."""
    # TODO: about 2 lines; `gradsync hint cleanup_distributed` if you are stuck
    raise NotImplementedError("phase1/cleanup_distributed")


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    """Copy rank `src`'s parameters and buffers to all ranks, bit for bit.

    The parameters and buffers stay the same objects, because an optimizer may already refer to
    them. The memory behind them may change. Gradients and `requires_grad` stay as they are. Every
    rank takes the tensors in the model's order, which depends on no hash or address.
    """
    # TODO: about 4 lines; `gradsync hint broadcast_model` if you are stuck
    raise NotImplementedError("phase1/broadcast_model")


def average_gradients(model: nn.Module) -> None:
    """Replace every rank's gradients by their mean over all ranks.

    If a rank has no gradient for a trainable parameter, the gradient counts as zero there, and the
    rank still takes part in the collective. Frozen parameters are not changed. Each gradient is
    averaged once, in its own dtype. Every rank takes the parameters in the model's order, which
    depends on no hash or address.
    """
    # TODO: about 7 lines; `gradsync hint average_gradients` if you are stuck
    raise NotImplementedError("phase1/average_gradients")


def train_step(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer
) -> float:
    """Take one optimizer step on this rank's batch, with averaged gradients.

    N ranks with B samples each get the same weights as one process with all N*B samples. Gradients
    from before the step are cleared. Every rank takes part in all collectives, even if a value is
    NaN on one rank only.

    Args:
        model: the model, the same on every rank.
        batch: this rank's `(inputs, targets)` of B samples. This function moves it to the model's
            device.
        loss_fn: a function that returns the mean loss of a batch, given outputs and targets.
        optimizer: the optimizer of the model's parameters.

    Returns:
        The mean loss over all ranks, before the step and not rounded.
    """
    # TODO: about 10 lines; `gradsync hint train_step` if you are stuck
    raise NotImplementedError("phase1/train_step")


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    """Train on every batch of the loader once, in training mode.

    The function first sets the epoch of the loader's sampler, if the sampler has `set_epoch`.

    Returns:
        The epoch's mean loss over the samples of all ranks, including the padding, not rounded. A
        smaller last batch has a smaller weight.
    """
    # TODO: about 9 lines; `gradsync hint train_epoch` if you are stuck
    raise NotImplementedError("phase1/train_epoch")


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    """Return `{"loss", "accuracy", "samples"}` over all ranks' samples, the same on every rank.

    Each sample has the same weight, even if ranks or batches differ in size. A rank may have no
    samples. The accuracy is between 0 and 1. The dict may have more keys. The model is evaluated
    in evaluation mode and without gradients, and its previous mode is restored.
    """
    # TODO: about 17 lines; `gradsync hint evaluate` if you are stuck
    raise NotImplementedError("phase1/evaluate")


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    """Write the model, the optimizer and the epoch to `path` on rank 0, completely or not at all.

    If the process crashes while it writes, the previous file is not changed. When the function
    returns, on any rank, the file exists.
    """
    # TODO: about 14 lines; `gradsync hint save_checkpoint` if you are stuck
    raise NotImplementedError("phase1/save_checkpoint")


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Load a checkpoint into the model and the optimizer, and return its epoch.

    Each rank reads the file, without a collective; no process group is needed. Code in the file
    never runs.
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

    Only rank 0 prints: one line for each epoch, and a header or a summary if you like. The train
    sampler gets the epochs 0, 1, 2, and so on. SGD may have momentum.

    Args:
        info: this process's rank and the world size.
        model: the model, already on its device; its weights may still differ between ranks.
        train_dataset: the samples to train on.
        val_dataset: the samples to evaluate on after each epoch.
        epochs: the number of passes over the training samples.
        batch_size: the number of samples in a batch of one rank.
        lr: the learning rate.
        seed: the seed of the shuffling.

    Returns:
        A list with `{"epoch", "train_loss", "val_loss", "val_accuracy"}` for each epoch. The val
        numbers are measured after the epoch's training. Epochs count from 0. An entry may have more
        keys.
    """
    # TODO: about 29 lines; `gradsync hint train` if you are stuck
    raise NotImplementedError("phase1/train")


def main() -> None:
    """Train the small CNN on MNIST: `torchrun --nproc_per_node 2 phase1/template_trainer.py`."""
    # Import this module before the process group exists, because its default arguments keep a
    # reference to the current group. Otherwise an optimizer imports it later, and the group's
    # threads still run when Python exits. If such a thread then frees a tensor, the process aborts.
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
