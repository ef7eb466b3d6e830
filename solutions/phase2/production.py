"""What production does: the training of phase 2 with PyTorch's own classes.

    torchrun --nproc_per_node 2 solutions/phase2/production.py --with ddp
    torchrun --nproc_per_node 2 solutions/phase2/production.py --with fsdp --compile

This is not an exercise. There is one function for each way to train; its docstring says which of
your functions or classes it replaces. All of them train the same small CNN and reach about the same
accuracy. They use nccl if there is a GPU for each rank, else gloo.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from gradsync.data import digits
from gradsync.model import SmallCNN

Context = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Way:
    """One way to train on many ranks."""

    # Takes an optimizer step; returns this rank's mean loss.
    step: Callable[[Tensor, Tensor], Tensor]
    weights: Callable[[], dict[str, Tensor]]  # of the whole model; a collective
    loader: Callable[[int], Iterable[list[Tensor]]]  # this rank's batches of an epoch
    epoch: Context = nullcontext  # the context in which an epoch runs


def with_ddp(model: nn.Module, data: Dataset, options: argparse.Namespace) -> Way:
    """Replicate the model: replaces `broadcast_model` and `BucketedGradientAverager`.

    PyTorch adds three things. The gradients are views of the buckets, so none is copied
    (gradient_as_bucket_view). The buckets are filled in the order of the first backward
    (static_graph). Ranks may run out of batches at different times (Join), so no sample is
    repeated or dropped. At the end, Join makes the weights equal, but not the optimizer's state:
    with momentum, the ranks' models would become different.
    """
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
    optimizer = SGD(ddp.parameters(), lr=options.lr)
    forward = torch.compile(ddp) if options.compile else ddp
    share = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))

    def loader(epoch: int) -> DataLoader:
        order = torch.Generator().manual_seed(epoch)
        return DataLoader(share, options.batch_size, shuffle=True, generator=order)

    # The first backward records the graph, so it must synchronise: inside no_sync, torch 2.13 fails
    # with "expect_autograd_hooks_ INTERNAL ASSERT FAILED". In the first step, each microbatch is
    # averaged, which gives the same gradients.
    first = _accumulating(forward, optimizer, nullcontext, options)
    other = _accumulating(forward, optimizer, ddp.no_sync, options)
    steps = chain([first], repeat(other))

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        return next(steps)(inputs, targets)

    return Way(
        step=step,
        weights=model.state_dict,
        loader=loader,
        epoch=lambda: Join([ddp]),
    )


def with_zero(model: nn.Module, data: Dataset, options: argparse.Namespace) -> Way:
    """Shard the optimizer's state: replaces `ShardedOptimizer`.

    SGD has no state, so this function uses Adam. PyTorch adds: collecting the state of all ranks
    for a checkpoint (consolidate_state_dict), and a step in the same hook as the all-reduce
    (overlap_with_ddp, not used here).
    """
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=Adam, lr=options.lr / 100)
    forward = torch.compile(ddp) if options.compile else ddp
    return Way(
        step=_accumulating(forward, optimizer, ddp.no_sync, options),
        weights=model.state_dict,
        loader=_padded_loader(data, options.batch_size),
    )


def with_fsdp(model: nn.Module, data: Dataset, options: argparse.Namespace) -> Way:
    """Shard parameters, gradients and state: ZeRO's stage 3; `ShardedOptimizer` is stage 1.

    Each layer's parameters are gathered just before it computes and freed afterwards: an all-gather
    in forward, another one in backward, and a reduce-scatter of the gradients. PyTorch adds: an
    all-gather of the next layer during this layer's computation, mixed precision, and offloading.
    """
    device = next(model.parameters()).device
    # The mesh gets a separate group, because DTensor's caches keep the mesh's group alive even
    # after destroy_process_group. If a gloo thread still has a tensor when Python exits, the
    # process aborts.
    mesh = DeviceMesh.from_group(dist.new_group(), device.type)
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    sharded = fully_shard(model, mesh=mesh)
    optimizer = SGD(sharded.parameters(), lr=options.lr)
    forward = torch.compile(sharded) if options.compile else sharded

    @contextmanager
    def no_sync() -> Iterator[None]:
        sharded.set_requires_gradient_sync(False)
        yield
        sharded.set_requires_gradient_sync(True)

    return Way(
        step=_accumulating(forward, optimizer, no_sync, options),
        weights=lambda: get_model_state_dict(
            sharded, options=StateDictOptions(full_state_dict=True)
        ),
        loader=_padded_loader(data, options.batch_size),
    )


def with_pipeline(model: nn.Module, data: Dataset, options: argparse.Namespace) -> Way:
    """Split the model into stages: replaces `pipeline_train_step`.

    PyTorch adds: splitting a model at the names of its layers, with torch.export; other schedules,
    which have smaller bubbles or need less memory (1F1B, interleaved, zero bubble); and shapes that
    are exchanged once instead of before each tensor. All microbatches have the same size.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = next(model.parameters()).device
    batch_size = options.batch_size * world_size  # equals the sum over ranks in the other ways
    begins = [name for name, _ in model.named_children()][1:world_size]
    if len(begins) < world_size - 1 or batch_size % options.microbatches:
        raise SystemExit("each stage needs a layer, and microbatches must have the same size")
    example = torch.zeros(batch_size // options.microbatches, 1, 28, 28, device=device)
    split = dict.fromkeys(begins, SplitPoint.BEGINNING)
    stage = pipeline(model, mb_args=(example,), split_spec=split).build_stage(rank, device)
    module = stage.submod
    if options.compile:
        stage.submod = torch.compile(module)
    optimizer = SGD(module.parameters(), lr=options.lr)
    schedule = ScheduleGPipe(stage, options.microbatches, loss_fn=F.cross_entropy)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        schedule.step(*[inputs] * (rank == 0), target=targets, losses=losses)
        optimizer.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=device)
        dist.broadcast(loss, src=world_size - 1)
        return loss

    def weights() -> dict[str, Tensor]:
        parts: list[dict[str, Tensor]] = [{}] * world_size
        dist.all_gather_object(parts, {k: v.cpu() for k, v in module.state_dict().items()})
        return {name: tensor for part in parts for name, tensor in part.items()}

    def loader(epoch: int) -> DataLoader:  # every rank gets the same batches
        order = torch.Generator().manual_seed(epoch)
        return DataLoader(data, batch_size, shuffle=True, generator=order, drop_last=True)

    return Way(step, weights, loader)


def _accumulating(
    forward: nn.Module, optimizer: Optimizer, no_sync: Context, options: argparse.Namespace
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a step like `train_step_accumulated`, which synchronises on the last microbatch.

    Each sample has the same weight in the gradient, even in a smaller last batch: with Join, a
    batch may have a single sample, which would otherwise change the model as much as a full batch.
    """

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=inputs.device)
        splits = (part.chunk(options.microbatches) for part in (inputs, targets))
        parts = list(zip(*splits, strict=True))
        for number, (some, wanted) in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else no_sync():
                loss = F.cross_entropy(forward(some), wanted, reduction="sum")
                (loss / options.batch_size).backward()
            total += loss.detach()
        optimizer.step()
        return total / len(targets)

    return step


def _padded_loader(data: Dataset, batch_size: int) -> Callable[[int], DataLoader]:
    """Return a loader with torch's sampler, which pads as `ResumableDistributedSampler` does."""
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size, sampler=sampler)

    def epoch(number: int) -> DataLoader:
        sampler.set_epoch(number)
        return loader

    return epoch


def evaluate(weights: dict[str, Tensor], data: Dataset, device: torch.device) -> float:
    """Return the accuracy of a model with these weights, counting each sample once."""
    model = SmallCNN().to(device)
    model.load_state_dict(weights)
    share = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    correct = torch.zeros((), device=device)
    with torch.no_grad():
        for images, labels in DataLoader(share, batch_size=500):
            correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    dist.all_reduce(correct)
    return correct.item() / len(data)


WAYS = {"ddp": with_ddp, "zero": with_zero, "fsdp": with_fsdp, "pipeline": with_pipeline}


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train the small CNN in the chosen way; rank 0 prints one line for each epoch."""
    known, unknown = digits().train.first(options.samples), digits().test
    torch.manual_seed(options.seed)
    way = WAYS[options.way](SmallCNN().to(device), known, options)
    weights = way.weights()
    for epoch in range(options.epochs):
        losses = []
        with way.epoch():
            for inputs, targets in way.loader(epoch):
                losses.append(way.step(inputs.to(device), targets.to(device)))
        loss = torch.stack(losses).mean()
        dist.all_reduce(loss)
        weights = way.weights()
        accuracy = evaluate(weights, unknown, device)
        if dist.get_rank() == 0:
            mean = loss.item() / dist.get_world_size()
            print(f"epoch {epoch}: train loss {mean:.4f}, test accuracy {accuracy:.2%}", flush=True)
    if options.save and dist.get_rank() == 0:
        torch.save({name: tensor.cpu() for name, tensor in weights.items()}, options.save)


def main() -> None:
    """Read the options, start the process group and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--with", dest="way", choices=WAYS, required=True)
    parser.add_argument("--compile", action="store_true", help="torch.compile, after wrapping")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=50, help="samples in a batch of one rank")
    parser.add_argument(
        "--microbatches", type=int, default=2, help="number of parts that a batch is split into"
    )
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of SGD")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="file to write the final weights to")
    options = parser.parse_args()

    local_rank, ranks_here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    has_gpu = torch.cuda.device_count() >= ranks_here
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    train(options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
