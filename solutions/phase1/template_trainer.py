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
    ### BEGIN SOLUTION
    if "RANK" in environ or "WORLD_SIZE" in environ:
        names, default_addr = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), "127.0.0.1"
    elif "SLURM_PROCID" in environ or "SLURM_NTASKS" in environ:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        default_addr = _first_host(environ.get("SLURM_JOB_NODELIST", ""))
    else:
        return RankInfo(0, 1, 0, environ.get("MASTER_ADDR", "127.0.0.1"), _port(environ))

    rank_name, size_name, local_name = names
    rank, world_size = _integer(environ, rank_name), _integer(environ, size_name)
    if not 0 <= rank < world_size:
        raise ValueError(f"{rank_name}={rank} is outside the world of {size_name}={world_size}")
    local_rank = _integer(environ, local_name) if local_name in environ else 0
    address = environ.get("MASTER_ADDR", default_addr)
    return RankInfo(rank, world_size, local_rank, address, _port(environ))
    ### END SOLUTION


### BEGIN SOLUTION
def _integer(environ: Mapping[str, str], name: str) -> int:
    if name not in environ:
        raise ValueError(f"{name} is not set, though its launcher's other variables are")
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {environ[name]!r}") from None


def _port(environ: Mapping[str, str]) -> int:
    return _integer(environ, "MASTER_PORT") if "MASTER_PORT" in environ else 29500


def _first_host(nodelist: str) -> str:
    """Return the first name of a Slurm node list; each bracket stands for its first number."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    if first is None:
        return "127.0.0.1"
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


### END SOLUTION


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
    ### BEGIN SOLUTION
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda", info.local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend or ("nccl" if use_cuda else "gloo"),
        init_method=f"tcp://{info.master_addr}:{info.master_port}",
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
    )
    dist.barrier()
    return device
    ### END SOLUTION


def cleanup_distributed() -> None:
    """End the default process group; harmless if there is none."""
    ### BEGIN SOLUTION
    if dist.is_initialized():
        dist.destroy_process_group()
    ### END SOLUTION


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    """Make every parameter and every buffer equal rank `src`'s, bit for bit.

    The parameters and buffers stay the same objects, since an optimizer may hold them already.
    They may use other memory than before. Gradients and `requires_grad` stay as they are.
    """
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        whole = tensor.detach().contiguous()
        dist.broadcast(whole, src=src)
        tensor.detach().copy_(whole)
    ### END SOLUTION


def average_gradients(model: nn.Module) -> None:
    """Replace every rank's gradients by their mean over ranks.

    A trainable parameter without a gradient on some ranks counts as zero there: every rank takes
    part in every collective. Frozen parameters are left alone.
    """
    ### BEGIN SOLUTION
    for param in model.parameters():
        if not param.requires_grad:
            continue
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    device = _device_of(model)
    inputs, targets = (part.to(device) for part in batch)
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()
    ### END SOLUTION


### BEGIN SOLUTION
def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


### END SOLUTION


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    """Train on every batch of the loader once, in training mode.

    Sets the epoch of the loader's sampler, if the sampler has `set_epoch`.

    Returns:
        The epoch's mean loss over all ranks' samples, those of the padding too: a smaller last
        batch weighs less.
    """
    ### BEGIN SOLUTION
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    model.train()
    total, samples = 0.0, 0
    for batch in loader:
        count = len(batch[1])
        total += train_step(model, batch, loss_fn, optimizer) * count
        samples += count
    return total / samples
    ### END SOLUTION


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    """Return `{"loss", "accuracy", "samples"}` over all ranks' samples, the same on every rank.

    Ranks and batches of unequal size weigh by their samples, and a rank may have none. The
    accuracy lies in 0..1. The dict may have more keys. The model is not changed: no gradients,
    evaluation mode, and each module's former mode put back.
    """
    ### BEGIN SOLUTION
    device = _device_of(model)
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # (loss, correct, samples)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        for batch in loader:
            inputs, targets = (part.to(device) for part in batch)
            outputs = model(inputs)
            count = len(targets)
            correct = (outputs.argmax(dim=1) == targets).sum().item()
            loss = loss_fn(outputs, targets).item() * count
            sums += torch.tensor([loss, correct, count], dtype=sums.dtype, device=device)
    for module, mode in modes.items():
        module.training = mode
    dist.all_reduce(sums)
    loss, correct, samples = sums.tolist()
    return {"loss": loss / samples, "accuracy": correct / samples, "samples": int(samples)}
    ### END SOLUTION


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    """Have rank 0 write model, optimizer and epoch to `path`, whole or not at all.

    A crash midway leaves the former file as it was. When the call returns, the file is there for
    every rank.
    """
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        path = Path(path)
        beside = path.with_name(f"{path.name}.part")
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
        }
        try:
            torch.save(state, beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    dist.barrier()
    ### END SOLUTION


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    """Put a checkpoint's state into model and optimizer, and return its epoch.

    Each rank reads for itself: no collective, no process group. Code in the file is never run.
    """
    ### BEGIN SOLUTION
    state = torch.load(path, map_location=_device_of(model), weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    broadcast_model(model)
    train_loader, val_loader = create_dataloaders(
        train_dataset,
        val_dataset,
        batch_size,
        world_size=info.world_size,
        rank=info.rank,
        seed=seed,
    )
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    history = []
    for epoch in range(epochs):
        train_loss = train_epoch(model, train_loader, loss_fn, optimizer, epoch)
        val = evaluate(model, val_loader, loss_fn)
        history.append(
            {
                "epoch": epoch,
                "train_loss": train_loss,
                "val_loss": val["loss"],
                "val_accuracy": val["accuracy"],
            }
        )
        if info.rank == 0:
            print(
                f"epoch {epoch}: train loss {train_loss:.4f}, val loss {val['loss']:.4f}, "
                f"val accuracy {val['accuracy']:.2%}"
            )
    return history
    ### END SOLUTION


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
