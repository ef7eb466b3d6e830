"""Autograd functions for each exchange; a pipeline of blocking sends and receives."""

from typing import Any

import torch.nn.functional as F


class _CopyToRanks(torch.autograd.Function):
    """The same tensor for every rank; backward adds the gradients up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad


class _SumOverRanks(torch.autograd.Function):
    """Adds up over ranks; backward hands the gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _GatherLastDim(torch.autograd.Function):
    """Puts the ranks' parts together; backward takes this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()


class _TakePart(torch.autograd.Function):
    """Cuts out this rank's part; backward puts the parts together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.chunk(dist.get_world_size(), dim=-1)[dist.get_rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        parts = [torch.empty_like(grad, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts, dim=-1)


def _part(total: int, name: str) -> int:
    world = dist.get_world_size()
    if total % world != 0:
        raise ValueError(f"{name}={total} does not divide by {world} ranks")
    return total // world


class ColumnParallelLinear(nn.Module):
    """A linear layer of which each rank holds some outputs."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        rows = _part(out_features, "out_features")
        self.gather_output = gather_output
        # The whole layer's numbers, those of rank 0, of which this rank keeps its rows.
        whole = nn.Linear(in_features, out_features, bias=bias)
        for p in whole.parameters():
            dist.broadcast(p.detach(), src=0)
        start = dist.get_rank() * rows
        self.weight = nn.Parameter(whole.weight.detach()[start : start + rows].clone())
        self.bias = nn.Parameter(whole.bias.detach()[start : start + rows].clone()) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = F.linear(_CopyToRanks.apply(inputs), self.weight, self.bias)
        return _GatherLastDim.apply(outputs) if self.gather_output else outputs


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank holds some inputs."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        columns = _part(in_features, "in_features")
        self.input_is_parallel = input_is_parallel
        whole = nn.Linear(in_features, out_features, bias=bias)
        for p in whole.parameters():
            dist.broadcast(p.detach(), src=0)
        start = dist.get_rank() * columns
        self.weight = nn.Parameter(whole.weight.detach()[:, start : start + columns].clone())
        self.bias = nn.Parameter(whole.bias.detach().clone()) if bias else None

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.input_is_parallel:
            inputs = _TakePart.apply(inputs)
        outputs = _SumOverRanks.apply(F.linear(inputs, self.weight))
        return outputs if self.bias is None else outputs + self.bias


@torch.no_grad()
def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Copy this rank's rows or columns of the whole weight, and what belongs to it of the bias."""
    rank = dist.get_rank()
    dim = 0 if isinstance(layer, ColumnParallelLinear) else 1
    size = layer.weight.shape[dim]
    part = weight.narrow(dim, rank * size, size)
    if weight.shape[dim] != size * dist.get_world_size() or part.shape != layer.weight.shape:
        raise ValueError(f"weight: {tuple(weight.shape)} does not fit the layer")
    layer.weight.copy_(part)
    if (bias is None) != (layer.bias is None):
        raise ValueError("bias: either both or neither of layer and arguments must have one")
    if bias is not None:
        layer.bias.copy_(bias.narrow(0, rank * size, size) if dim == 0 else bias)


_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)


def _send_activations(x: Tensor, dst: int) -> None:
    """First how many dimensions and what kind, then the sizes, then the numbers."""
    x = x.detach().contiguous()
    dist.send(torch.tensor([x.dim(), _DTYPES.index(x.dtype)], device=x.device), dst)
    if x.dim():
        dist.send(torch.tensor(x.shape, device=x.device), dst)
    dist.send(x, dst)


def _receive_activations(src: int, device: torch.device) -> Tensor:
    head = torch.empty(2, dtype=torch.int64, device=device)
    dist.recv(head, src)
    sizes = torch.empty(int(head[0]), dtype=torch.int64, device=device)
    if sizes.numel():
        dist.recv(sizes, src)
    x = torch.empty(sizes.tolist(), dtype=_DTYPES[int(head[1])], device=device)
    dist.recv(x, src)
    return x


def _stage_device(stage: nn.Module) -> torch.device:
    return next((p.device for p in stage.parameters()), torch.device("cpu"))


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Blocking sends and receives: a pipeline is a chain, and in a chain nobody waits in a circle."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    device = _stage_device(stage)
    optimizer.zero_grad()
    stage.zero_grad()
    total = sum(len(targets) for _, targets in microbatches) if rank == last else 0
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    kept: list[tuple[Tensor, Tensor]] = []
    for inputs, targets in microbatches:
        if rank == 0:
            x = inputs.to(device)
            outputs = stage(x)
        else:
            x = _receive_activations(rank - 1, device)
            x.requires_grad_(x.is_floating_point())
            outputs = stage(x.clone())  # a stage may begin with something in place
        if rank == last:
            targets = targets.to(device)
            outputs = loss_fn(outputs, targets) * (len(targets) / total)
            loss_sum += outputs.detach()
        else:
            _send_activations(outputs, rank + 1)
        kept.append((x, outputs))

    for x, outputs in kept:
        if rank == last:
            gradient = None
        elif outputs.is_floating_point():
            gradient = torch.empty_like(outputs.detach(), memory_format=torch.contiguous_format)
            dist.recv(gradient, rank + 1)
        if outputs.requires_grad:
            outputs.backward(gradient)
        if rank > 0 and x.is_floating_point():
            dist.send(torch.zeros_like(x) if x.grad is None else x.grad.contiguous(), rank - 1)
    optimizer.step()
    dist.broadcast(loss_sum, src=last)
    return loss_sum.item()
