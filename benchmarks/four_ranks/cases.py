"""Twenty small tests of collectives; each is called on every rank of a gloo group."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Case = Callable[[int, int], None]


def all_reduce_sum(rank: int, world_size: int) -> None:
    assert reduced(rank, dist.ReduceOp.SUM) == sum(range(world_size))


def all_reduce_max(rank: int, world_size: int) -> None:
    assert reduced(rank, dist.ReduceOp.MAX) == world_size - 1


def all_reduce_min(rank: int, world_size: int) -> None:
    assert reduced(rank - world_size, dist.ReduceOp.MIN) == -world_size


def all_reduce_product(rank: int, world_size: int) -> None:
    assert reduced(rank + 1, dist.ReduceOp.PRODUCT) == torch.arange(1, world_size + 1).prod()


def all_reduce_of_doubles(rank: int, world_size: int) -> None:
    total = torch.full((3, 2), float(rank), dtype=torch.float64)
    dist.all_reduce(total)
    assert total.eq(sum(range(world_size))).all()


def all_reduce_of_integers(rank: int, world_size: int) -> None:
    total = torch.tensor([rank, 1])
    dist.all_reduce(total)
    assert total.tolist() == [sum(range(world_size)), world_size]


def all_reduce_twice(rank: int, world_size: int) -> None:
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    dist.all_reduce(total)
    assert total == world_size * sum(range(world_size))


def all_reduce_asynchronous(rank: int, world_size: int) -> None:
    totals = [torch.tensor(float(rank)) for _ in range(4)]
    for work in [dist.all_reduce(total, async_op=True) for total in totals]:
        work.wait()
    assert all(total == sum(range(world_size)) for total in totals)


def all_reduce_in_a_group(rank: int, world_size: int) -> None:
    evens = list(range(0, world_size, 2))
    group = dist.new_group(evens)
    if rank in evens:
        total = torch.tensor(float(rank))
        dist.all_reduce(total, group=group)
        assert total == sum(evens)


def broadcast(rank: int, world_size: int) -> None:
    value = torch.full((5,), float(rank))
    dist.broadcast(value, src=world_size - 1)
    assert value.eq(world_size - 1).all()


def reduce(rank: int, world_size: int) -> None:
    total = torch.tensor(float(rank))
    dist.reduce(total, dst=0)
    assert rank != 0 or total == sum(range(world_size))


def all_gather(rank: int, world_size: int) -> None:
    parts = [torch.empty(2) for _ in range(world_size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert torch.cat(parts).tolist() == [r for r in range(world_size) for _ in range(2)]


def gather(rank: int, world_size: int) -> None:
    parts = [torch.empty(1) for _ in range(world_size)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), parts, dst=0)
    assert parts is None or torch.cat(parts).tolist() == list(range(world_size))


def scatter(rank: int, world_size: int) -> None:
    parts = list(torch.arange(float(world_size)).split(1)) if rank == 0 else None
    mine = torch.empty(1)
    dist.scatter(mine, parts, src=0)
    assert mine == rank


def all_to_all(rank: int, world_size: int) -> None:
    received = torch.empty(world_size)
    dist.all_to_all_single(received, torch.full((world_size,), float(rank)))
    assert received.tolist() == list(range(world_size))


def all_gather_object(rank: int, world_size: int) -> None:
    names: list[str | None] = [None] * world_size
    dist.all_gather_object(names, f"rank {rank}")
    assert names == [f"rank {r}" for r in range(world_size)]


def barrier(rank: int, world_size: int) -> None:  # noqa: ARG001
    dist.barrier()


def send_and_receive(rank: int, world_size: int) -> None:
    value = torch.tensor(float(rank))
    if rank > 0:
        dist.recv(value, src=rank - 1)
    if rank < world_size - 1:
        dist.send(value, dst=rank + 1)
    assert value == 0


def ring(rank: int, world_size: int) -> None:
    received = torch.empty(())
    sent = dist.isend(torch.tensor(float(rank)), dst=(rank + 1) % world_size)
    dist.recv(received, src=(rank - 1) % world_size)
    sent.wait()
    assert received == (rank - 1) % world_size


def step_of_ddp(rank: int, world_size: int) -> None:
    model = DistributedDataParallel(nn.Linear(1, 1))
    model(torch.full((1, 1), float(rank))).sum().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    assert gradient.item() == sum(range(world_size)) / world_size


def reduced(value: int, op: dist.ReduceOp.RedOpType) -> Tensor:
    total = torch.tensor(float(value))
    dist.all_reduce(total, op)
    return total


CASES: tuple[Case, ...] = (
    all_reduce_sum,
    all_reduce_max,
    all_reduce_min,
    all_reduce_product,
    all_reduce_of_doubles,
    all_reduce_of_integers,
    all_reduce_twice,
    all_reduce_asynchronous,
    all_reduce_in_a_group,
    broadcast,
    reduce,
    all_gather,
    gather,
    scatter,
    all_to_all,
    all_gather_object,
    barrier,
    send_and_receive,
    ring,
    step_of_ddp,
)
