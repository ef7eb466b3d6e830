"""Phase 2: parallel linear layers and a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer


LossFunction = Callable[[Tensor, Tensor], Tensor]


class _Hooked(torch.autograd.Function):
    """A function given by two others: what to do forward, and what to do with the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ahead: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return ahead(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad), None, None


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)


def _total(x: Tensor) -> Tensor:
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x


def _whole(x: Tensor) -> Tensor:
    """The parts of all ranks, side by side."""
    world = dist.get_world_size()
    gathered = x.new_empty((world, *x.shape))
    dist.all_gather_into_tensor(gathered.view(-1), x.contiguous().view(-1))
    return gathered.movedim(0, -2).reshape(*x.shape[:-1], world * x.shape[-1])


def _own(x: Tensor) -> Tensor:
    width = x.shape[-1] // dist.get_world_size()
    return x.narrow(-1, dist.get_rank() * width, width).contiguous()


class _ParallelLinear(nn.Module):
    """What both kinds have in common: a slice of the weight, along one of its dimensions."""

    split_dim: int

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        sizes = [out_features, in_features]
        if sizes[self.split_dim] % dist.get_world_size():
            name = ("out_features", "in_features")[self.split_dim]
            raise ValueError(f"{name}: {sizes[self.split_dim]} is no multiple of {dist.get_world_size()}")
        sizes[self.split_dim] //= dist.get_world_size()
        # Rank 0 draws the whole layer and scatters its parts.
        self.weight = nn.Parameter(torch.empty(sizes))
        self.bias = nn.Parameter(torch.empty(sizes[0])) if bias else None
        full = nn.Linear(in_features, out_features, bias) if dist.get_rank() == 0 else None
        self._scatter(self.weight, None if full is None else full.weight, self.split_dim)
        if bias and self.split_dim == 0:
            self._scatter(self.bias, None if full is None else full.bias, 0)
        elif bias:
            if full is not None:
                self.bias.data.copy_(full.bias)
            dist.broadcast(self.bias.data, 0)

    @staticmethod
    def _scatter(parameter: nn.Parameter, full: Tensor | None, dim: int) -> None:
        parts = None
        if full is not None:
            parts = [part.contiguous() for part in full.detach().chunk(dist.get_world_size(), dim)]
        dist.scatter(parameter.data, parts, src=0)


class ColumnParallelLinear(_ParallelLinear):
    """Each rank has some of the outputs."""

    split_dim = 0

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.gather_output = gather_output

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = F.linear(_Hooked.apply(inputs, _same, _total), self.weight, self.bias)
        return _Hooked.apply(outputs, _whole, _own) if self.gather_output else outputs


class RowParallelLinear(_ParallelLinear):
    """Each rank has some of the inputs."""

    split_dim = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.input_is_parallel = input_is_parallel

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.input_is_parallel:
            inputs = _Hooked.apply(inputs, _own, _whole)
        outputs = _Hooked.apply(F.linear(inputs, self.weight), _total, _same)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Through the layer's `load_state_dict`, which copies into the parameters that are there."""
    world, rank = dist.get_world_size(), dist.get_rank()
    parts = {"weight": weight.detach().tensor_split(world, layer.split_dim)[rank]}
    if layer.bias is not None:
        if bias is None:
            raise ValueError("bias: the layer has one, but none was given")
        parts["bias"] = bias.detach()
        if layer.split_dim == 0:
            parts["bias"] = parts["bias"].tensor_split(world)[rank]
    layer.load_state_dict(parts)


_NUMBER_OF = {dtype: number for number, dtype in enumerate([
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
])}
_DTYPE_OF = list(_NUMBER_OF)


@dataclass
class _Slot:
    """What one microbatch leaves on this rank between its forward and its backward."""

    entry: Tensor | None = None
    exit: Tensor | None = None
    arriving: Tensor | None = None
    handle: Any = None


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Receives for the gradients are posted as soon as the activations have left.

    A tag for each microbatch says which message belongs to which, whatever order they come in.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    has_before, has_after = rank > 0, rank + 1 < world
    device = next((p.device for p in stage.parameters()), torch.device("cpu"))
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    stage.zero_grad(set_to_none=True)

    leaving: list[tuple[Any, Tensor]] = []

    def leave(tensor: Tensor, to: int, tag: int) -> None:
        tensor = tensor.detach().contiguous()
        leaving.append((dist.isend(tensor, to, tag=tag), tensor))

    slots = [_Slot() for _ in microbatches]
    total = 0 if has_after else sum(len(targets) for _, targets in microbatches)
    loss = 0.0
    for tag, (slot, (inputs, targets)) in enumerate(zip(slots, microbatches, strict=True)):
        if has_before:
            head = torch.zeros(2, dtype=torch.int64, device=device)
            dist.irecv(head, rank - 1, tag=3 * tag).wait()
            sizes = torch.zeros(int(head[1]), dtype=torch.int64, device=device)
            if sizes.numel() > 0:
                dist.irecv(sizes, rank - 1, tag=3 * tag + 1).wait()
            entry = torch.zeros(sizes.tolist(), dtype=_DTYPE_OF[int(head[0])], device=device)
            dist.irecv(entry, rank - 1, tag=3 * tag + 2).wait()
            slot.entry = entry.requires_grad_(entry.dtype.is_floating_point)
            inputs = slot.entry.clone()
        slot.exit = stage(inputs.to(device))
        if has_after:
            out = slot.exit
            leave(torch.tensor([_NUMBER_OF[out.dtype], out.dim()], device=device), rank + 1, 3 * tag)
            if out.dim() > 0:
                leave(torch.tensor(list(out.shape), device=device), rank + 1, 3 * tag + 1)
            leave(out, rank + 1, 3 * tag + 2)
            if out.dtype.is_floating_point:
                slot.arriving = torch.zeros(out.shape, dtype=out.dtype, device=device)
                slot.handle = dist.irecv(slot.arriving, rank + 1, tag=tag)
        else:
            targets = targets.to(device)
            slot.exit = loss_fn(slot.exit, targets) * (len(targets) / total)
            loss += slot.exit.item()

    for tag, slot in enumerate(slots):
        if slot.handle is not None:
            slot.handle.wait()
        if slot.exit.requires_grad:
            slot.exit.backward(slot.arriving)
        if slot.entry is not None and slot.entry.dtype.is_floating_point:
            back = slot.entry.grad if slot.entry.grad is not None else torch.zeros_like(slot.entry)
            leave(back, rank - 1, tag)
        slot.exit = None  # its activations may go
    for handle, _ in leaving:
        handle.wait()
    optimizer.step()

    # The loss goes the way of the gradients: from rank to rank, back to the first.
    mean = torch.tensor(loss, dtype=torch.float64, device=device)
    if has_after:
        dist.recv(mean, rank + 1)
    if has_before:
        dist.send(mean, rank - 1)
    return mean.item()


def main() -> None:
    """Compare two parallel layers with the whole ones: run it with torchrun on 2 ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    inputs = torch.randn(5, 8)
    column, row = ColumnParallelLinear(8, 16), RowParallelLinear(16, 4)
    load_full_linear(column, first.weight, first.bias)
    load_full_linear(row, second.weight, second.bias)
    same = torch.allclose(row(torch.relu(column(inputs))), second(torch.relu(first(inputs))))
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks, the whole model's outputs: {'yes' if same else 'NO'}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
