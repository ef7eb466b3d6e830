"""A whole layer as one function with gradients by hand; receives for gradients are posted early."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F


class _ColumnLinear(torch.autograd.Function):
    """The whole layer as one function, with the gradients written out by hand.

    This lets the input's gradient travel while those of the weight and bias are computed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.with_bias = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = work = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad @ weight).contiguous()
            work = dist.all_reduce(grad_x, async_op=True)
        rows = grad.reshape(-1, grad.shape[-1])
        if ctx.needs_input_grad[1]:
            grad_w = rows.T @ x.reshape(-1, x.shape[-1])
        if ctx.with_bias and ctx.needs_input_grad[2]:
            grad_b = rows.sum(dim=0)
        if work is not None:
            work.wait()
        return grad_x, grad_w, grad_b


class _RowLinear(torch.autograd.Function):
    """Summands of all ranks added up; backward is that of an ordinary layer on this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.with_bias = bias is not None
        y = F.linear(x, weight).contiguous()
        dist.all_reduce(y)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        grad_w = rows.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        grad_b = rows.sum(dim=0) if ctx.with_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_w, grad_b


class _Exchange(torch.autograd.Function):
    """Whole to part, or part to whole, and the other way round in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gather: bool) -> Tensor:
        ctx.gather = gather
        return _Exchange.run(x, gather)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Exchange.run(grad, not ctx.gather), None

    @staticmethod
    def run(x: Tensor, gather: bool) -> Tensor:
        world, rank = dist.get_world_size(), dist.get_rank()
        if not gather:
            return x.tensor_split(world, dim=-1)[rank].contiguous()
        rows = x.movedim(-1, 0).contiguous()  # the dimension to gather along comes first
        whole = rows.new_empty((world * rows.shape[0], *rows.shape[1:]))
        dist.all_gather_into_tensor(whole, rows)
        return whole.movedim(0, -1).contiguous()


class ColumnParallelLinear(nn.Module):
    """This rank's outputs of a linear layer."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        if out_features % dist.get_world_size() != 0:
            raise ValueError(f"out_features: {out_features} % {dist.get_world_size()} is not 0")
        self.gather_output = gather_output
        self.weight, self.bias = _parts(nn.Linear(in_features, out_features, bias), 0)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = _ColumnLinear.apply(inputs, self.weight, self.bias)
        return _Exchange.apply(outputs, True) if self.gather_output else outputs


class RowParallelLinear(nn.Module):
    """This rank's inputs of a linear layer."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        if in_features % dist.get_world_size() != 0:
            raise ValueError(f"in_features: {in_features} % {dist.get_world_size()} is not 0")
        self.input_is_parallel = input_is_parallel
        self.weight, self.bias = _parts(nn.Linear(in_features, out_features, bias), 1)
        if self.bias is not None:
            # Ranks may have drawn different numbers. Parts of different weights are as random as
            # those of one, but there is one bias, and every rank has it.
            dist.broadcast(self.bias.detach(), src=0)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.input_is_parallel:
            inputs = _Exchange.apply(inputs, False)
        return _RowLinear.apply(inputs, self.weight, self.bias)


def _parts(full: nn.Linear, dim: int) -> tuple[nn.Parameter, nn.Parameter | None]:
    """New parameters with this rank's part of a whole layer, cut along `dim` of its weight."""
    world, rank = dist.get_world_size(), dist.get_rank()
    weight = full.weight.detach().tensor_split(world, dim)[rank].clone()
    if full.bias is None:
        return nn.Parameter(weight), None
    bias = full.bias.detach()
    if dim == 0:
        bias = bias.tensor_split(world)[rank]
    return nn.Parameter(weight), nn.Parameter(bias.clone())


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Cut a whole layer up as a new one is, and copy the values."""
    full = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    full.weight = nn.Parameter(weight.detach())
    if bias is not None:
        full.bias = nn.Parameter(bias.detach())
    new_weight, new_bias = _parts(full, 0 if isinstance(layer, ColumnParallelLinear) else 1)
    with torch.no_grad():
        layer.weight.copy_(new_weight)
        if layer.bias is not None and new_bias is not None:
            layer.bias.copy_(new_bias)


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
