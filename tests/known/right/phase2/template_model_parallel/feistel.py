"""Autograd functions that are made of two others, one for each direction."""

from typing import Any

import torch.nn.functional as F


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
