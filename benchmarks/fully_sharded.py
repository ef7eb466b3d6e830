"""A transformer that the solution of phase 3 shards, and the same one in FSDP2."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from benchmarks.figure import Figure, shown
from benchmarks.plain import on_plain_ranks, slowest, steps_in_turns

RANKS = 2
ROWS, TOKENS = 8, 128  # a batch of a rank, as in `gradsync train 3`
WIDTHS = {"0.5 M": 112, "3.5 M": 304}  # number of parameters -> width


def figures() -> Iterator[Figure]:
    """Measure complete steps with AdamW, and the bytes of tensors between two steps."""
    for size, width in WIDTHS.items():
        ours, theirs = slowest(on_plain_ranks(step_times, RANKS, width, phase=3))
        yield Figure(
            f"a step of a transformer on {RANKS} ranks, {size} parameters",
            f"FullyShardedModule: {shown(ours)}",
            f"FSDP2: {shown(theirs)}",
            ours / theirs,
            "at most FSDP2's",
            ours <= theirs,
        )
        held = on_plain_ranks(held_bytes, RANKS, width, phase=3)
        mine, other, shard = (max(counts) for counts in zip(*held, strict=True))
        yield Figure(
            f"bytes of parameters on a rank between steps, {size} parameters",
            f"FullyShardedModule: {mine:,}",
            f"FSDP2: {other:,}",
            mine / other,
            f"at most 1.05 times its part, {shard:,}",
            mine <= 1.05 * shard,
        )


def step_times(width: int) -> tuple[float, float]:
    """Return this rank's median seconds for a step, ours and FSDP2's, of the same model."""
    plain = transformer(width)
    steps = [step_of(shard(copy.deepcopy(plain))) for shard in (by_us, by_torch)]
    return steps_in_turns(*steps, steps=3, times=31)


def held_bytes(width: int) -> tuple[int, int, int]:
    """Return the bytes that a step leaves, without optimizer and gradients: ours, FSDP2's.

    The third number is a rank's part: 1/N of each matrix, and the other parameters.
    """
    plain = transformer(width)
    shapes = [param.shape for param in plain.parameters()]
    elements = (math.ceil(s.numel() / RANKS) if len(s) > 1 else s.numel() for s in shapes)
    part = torch.float32.itemsize * sum(elements)
    del plain
    found = []
    for shard in (by_us, by_torch):
        before = tensor_bytes()
        model = shard(transformer(width))
        step_of(model)()
        model.zero_grad()
        found.append(tensor_bytes() - before)
        del model
    return found[0], found[1], part


def transformer(width: int) -> nn.Module:
    from model import Transformer

    torch.manual_seed(0)
    return Transformer(width)


def by_us(model: nn.Module) -> nn.Module:
    from template_trainer import FullyShardedModule

    return FullyShardedModule(model)


def by_torch(model: nn.Module) -> nn.Module:
    """Shard each block by itself, and the rest together, as PyTorch's tutorial does."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step_of(model: nn.Module) -> Callable[[], None]:
    """Return a function that takes a step: forward, backward, averaging, AdamW."""
    tokens = torch.randint(256, (ROWS, TOKENS + 1))
    optimizer = AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        if hasattr(model, "finish"):
            model.finish()
        optimizer.step()

    return step


def tensor_bytes() -> int:
    """Return the bytes behind all tensors of this process."""
    gc.collect()
    kinds = (torch.Tensor, nn.Parameter)  # a DTensor has one of these
    storages = (each.untyped_storage() for each in gc.get_objects() if type(each) in kinds)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
