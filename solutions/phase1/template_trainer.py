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

### BEGIN SOLUTION
# isort: split
import re

### END SOLUTION
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
        raise ValueError(f"{rank_name} must be in 0..{world_size - 1}, got {rank}")
    local_rank = _integer(environ, local_name) if local_name in environ else 0
    address = environ.get("MASTER_ADDR", default_addr)
    return RankInfo(rank, world_size, local_rank, address, _port(environ))
    ### END SOLUTION


### BEGIN SOLUTION
def _integer(environ: Mapping[str, str], name: str) -> int:
    if name not in environ:
        raise ValueError(f"{name} is not set, but another variable of its launcher is")
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {environ[name]!r}") from None


def _port(environ: Mapping[str, str]) -> int:
    return _integer(environ, "MASTER_PORT") if "MASTER_PORT" in environ else 29500


def _first_host(nodelist: str) -> str:
    """Return the first host of a Slurm node list: the first number in each pair of brackets."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    if first is None:
        return "127.0.0.1"
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


### END SOLUTION


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
    """End the default process group, or do nothing if there is none."""
    ### BEGIN SOLUTION
    if dist.is_initialized():
        dist.destroy_process_group()
    ### END SOLUTION


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    """Copy rank `src`'s parameters and buffers to all ranks, bit for bit.

    The parameters and buffers stay the same objects, because an optimizer may already refer to
    them. The memory behind them may change. Gradients and `requires_grad` stay as they are. Every
    rank takes the tensors in the model's order, which depends on no hash or address.
    """
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        whole = tensor.detach().contiguous()
        dist.broadcast(whole, src=src)
        tensor.detach().copy_(whole)
    ### END SOLUTION


def average_gradients(model: nn.Module) -> None:
    """Replace every rank's gradients by their mean over all ranks.

    If a rank has no gradient for a trainable parameter, the gradient counts as zero there, and the
    rank still takes part in the collective. Frozen parameters are not changed. Each gradient is
    averaged once, in its own dtype. Every rank takes the parameters in the model's order, which
    depends on no hash or address.
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

    The function first sets the epoch of the loader's sampler, if the sampler has `set_epoch`.

    Returns:
        The epoch's mean loss over the samples of all ranks, including the padding, not rounded. A
        smaller last batch has a smaller weight.
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

    Each sample has the same weight, even if ranks or batches differ in size. A rank may have no
    samples. The accuracy is between 0 and 1. The dict may have more keys. The model is evaluated
    in evaluation mode and without gradients, and its previous mode is restored.
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
    """Write the model, the optimizer and the epoch to `path` on rank 0, completely or not at all.

    If the process crashes while it writes, the previous file is not changed. When the function
    returns, on any rank, the file exists.
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
    """Load a checkpoint into the model and the optimizer, and return its epoch.

    Each rank reads the file, without a collective; no process group is needed. Code in the file
    never runs.
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
