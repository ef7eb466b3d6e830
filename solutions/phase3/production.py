"""What production does: the training of phase 3 with PyTorch's own classes.

    torchrun --nproc_per_node 2 solutions/phase3/production.py
    torchrun --nproc_per_node 2 solutions/phase3/production.py --bfloat16 --resume
    torchrun --nproc_per_node 2 solutions/phase3/production.py --pipeline

This is not an exercise. The comments say which of your functions or classes each part replaces. It
trains the same transformer on the same text, with nccl if there is a GPU for each rank, else gloo.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "phase3"))

from model import EOS, Transformer, sample, standard_library  # noqa: E402

LENGTH = 128


class Position:
    """The number of steps, in a form that a distributed checkpoint saves and loads."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def sharded(model: Transformer, options: argparse.Namespace, device: torch.device) -> nn.Module:
    """Shard a model: replaces `FullyShardedModule`, with `compute_dtype` as a policy.

    A block's parameters are gathered in one message, and the next block's while it computes.
    PyTorch splits each along its first dimension, so that parts are DTensors of the same shape but
    for one side.
    """
    # The mesh gets its own group: see `with_fsdp` in phase 2.
    mesh = DeviceMesh.from_group(dist.new_group(), device.type)
    low = torch.bfloat16 if options.bfloat16 else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def loader_of(rows: Tensor, batch_size: int, epoch: int) -> DataLoader:
    """Return the batches of an epoch: replaces `TokenLoader`, without its state."""
    sampler = DistributedSampler(TensorDataset(rows), drop_last=True)
    sampler.set_epoch(epoch)
    return DataLoader(TensorDataset(rows), batch_size, sampler=sampler, drop_last=True)


def step_of(model: nn.Module, optimizer: Optimizer, rows: Tensor) -> tuple[float, float]:
    """Take a step; return the mean loss over all ranks and the norm of the gradients.

    No token is ignored here, so the ranks' means have equal weights. `clip_grad_norm_` returns a
    DTensor, of which each rank has a part until it asks for all of it.
    """
    optimizer.zero_grad()
    logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return mean.item() / dist.get_world_size(), whole.item()


def state_of(model: nn.Module, optimizer: Optimizer, position: Position) -> dict[str, Any]:
    """Return what a checkpoint has: replaces `save_sharded` and `load_sharded`, with `dcp`."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "position": position}


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train the transformer; rank 0 prints, and all ranks write one checkpoint at the end."""
    text = torch.cat([torch.cat([d, torch.tensor([EOS])]) for d in standard_library()])
    rows = text.unfold(0, LENGTH + 1, LENGTH)[: options.rows]
    torch.manual_seed(0)
    model = sharded(Transformer().to(device), options, device)
    optimizer = AdamW(model.parameters(), lr=options.lr)
    position = Position()
    if options.resume and options.checkpoint.is_dir():
        state = state_of(model, optimizer, position)
        dcp.load(state, checkpoint_id=options.checkpoint)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    steps = len(rows) // (options.batch_size * dist.get_world_size())  # of an epoch
    for number in range(position.step, options.steps):
        epoch, skipped = divmod(number, steps)
        if number == position.step or skipped == 0:
            batches = iter(loader_of(rows, options.batch_size, epoch))
            for _ in range(skipped):
                next(batches)
        [batch] = next(batches)
        loss, norm = step_of(model, optimizer, batch.to(device))
        if dist.get_rank() == 0:
            print(f"step {number}: loss {loss:.4f}, norm {norm:.2f}", flush=True)
    position.step = options.steps
    dcp.save(state_of(model, optimizer, position), checkpoint_id=options.checkpoint)
    whole = {name: param.full_tensor().cpu() for name, param in model.named_parameters()}
    if dist.get_rank() == 0:
        plain = Transformer()
        plain.load_state_dict(whole)
        print(sample(plain, "def ", 100))


class Stage(nn.Module):
    """A rank's consecutive blocks; the first stage embeds tokens, the last one returns logits."""

    def __init__(self, model: Transformer, rank: int, ranks: int) -> None:
        super().__init__()
        first, end = (round(len(model.blocks) * edge / ranks) for edge in (rank, rank + 1))
        self.embedding = model.embedding if rank == 0 else nn.Identity()
        self.blocks = model.blocks[first:end]
        last = rank == ranks - 1
        self.head = nn.Sequential(model.norm, model.head) if last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, None)
        return self.head(x)


def train_in_stages(options: argparse.Namespace, device: torch.device) -> None:
    """Train the transformer as a pipeline: replaces `pipeline_1f1b`; the last rank prints.

    All microbatches have the same size, and there are at least as many as ranks.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = torch.cat([torch.cat([d, torch.tensor([EOS])]) for d in standard_library()])
    rows = text.unfold(0, LENGTH + 1, LENGTH)[: options.rows]
    torch.manual_seed(0)
    stage = Stage(Transformer(), rank, ranks).to(device)
    optimizer = AdamW(stage.parameters(), lr=options.lr)

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    schedule = Schedule1F1B(PipelineStage(stage, rank, ranks, device), 2 * ranks, loss_fn=loss_of)
    batch_size = options.batch_size * ranks
    batches = len(rows) // batch_size
    for number in range(options.steps):
        start = number % batches * batch_size  # every rank has the same batch
        batch = rows[start : start + batch_size].to(device)
        losses: list[Tensor] = []
        optimizer.zero_grad()
        ends = {"target": batch[:, 1:], "losses": losses} if rank == ranks - 1 else {}
        schedule.step(*[batch[:, :-1]] * (rank == 0), **ends)
        optimizer.step()
        if losses:
            mean = torch.stack(losses).mean().item()
            print(f"step {number}: loss {mean:.4f}", flush=True)


def main() -> None:
    """Read the options, start the process group and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=3200, help="rows of 128 tokens to train on")
    parser.add_argument("--batch-size", type=int, default=8, help="rows in a batch of one rank")
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--bfloat16", action="store_true", help="compute and gather in bfloat16")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--pipeline", action="store_true", help="stages of the model on the ranks")
    parser.add_argument("--checkpoint", type=Path, default=Path("transformer"), help="a folder")
    options = parser.parse_args()

    local_rank, ranks_here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    has_gpu = torch.cuda.device_count() >= ranks_here
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    (train_in_stages if options.pipeline else train)(options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
