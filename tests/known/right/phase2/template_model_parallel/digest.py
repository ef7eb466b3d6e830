"""Tensor hooks and plain autograd instead of autograd functions."""

import torch.nn.functional as F


def _divided(total: int, what: str) -> int:
    each, rest = divmod(total, dist.get_world_size())
    if rest:
        raise ValueError(f"{what} ({total}) must be a multiple of the number of ranks")
    return each


def _shared_generator() -> torch.Generator:
    """A generator in the same state on every rank, started by a number that rank 0 draws."""
    seed = torch.randint(2**40, (1,))
    dist.broadcast(seed, src=0)
    return torch.Generator().manual_seed(int(seed))


def _summed_backward(x: Tensor) -> Tensor:
    """The same values; but what flows back through it is added up over ranks, by a hook."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return x

    def add_up(grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        return total

    x = x.view_as(x)
    x.register_hook(add_up)
    return x


class ColumnParallelLinear(nn.Module):
    """Some outputs each. Tensor hooks and plain autograd instead of functions of our own."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.gather_output = gather_output
        self.rows = _divided(out_features, "out_features")
        generator = _shared_generator()
        bound = in_features**-0.5 if in_features > 0 else 0.0
        mine = slice(dist.get_rank() * self.rows, (dist.get_rank() + 1) * self.rows)
        weight = torch.empty(out_features, in_features).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(weight[mine].clone())
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound, generator=generator)[mine].clone())

    def forward(self, inputs: Tensor) -> Tensor:
        part = F.linear(_summed_backward(inputs), self.weight, self.bias)
        if not self.gather_output:
            return part
        parts = [torch.empty_like(part).contiguous() for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.detach().contiguous())
        # The others' parts are constants here. The own one keeps its history, and `cat` cuts its
        # gradient out of the whole one.
        parts[dist.get_rank()] = part
        return torch.cat(parts, dim=-1)


class RowParallelLinear(nn.Module):
    """Some inputs each; the summands are added up in place, behind autograd's back."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.input_is_parallel = input_is_parallel
        self.columns = _divided(in_features, "in_features")
        generator = _shared_generator()
        bound = in_features**-0.5 if in_features > 0 else 0.0
        first = dist.get_rank() * self.columns
        weight = torch.empty(out_features, in_features).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(weight[:, first : first + self.columns].clone())
        self.register_parameter("bias", None)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound, generator=generator))

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.input_is_parallel:
            first = dist.get_rank() * self.columns
            inputs = _summed_backward(inputs)[..., first : first + self.columns]
        outputs = F.linear(inputs, self.weight)
        # A sum's gradient is that of each summand, so the history of the summand is right as it
        # is: only its values change. `linear` does not keep its output for backward.
        dist.all_reduce(outputs.data)
        return outputs if self.bias is None else outputs + self.bias


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Copy by slices; what the layer's parameters are is not touched."""
    if tuple(weight.shape) != (layer.out_features, layer.in_features):
        raise ValueError(f"weight has shape {tuple(weight.shape)}")
    rank = dist.get_rank()
    if isinstance(layer, ColumnParallelLinear):
        rows = slice(rank * layer.rows, (rank + 1) * layer.rows)
        pairs = [(layer.weight, weight[rows]), (layer.bias, None if bias is None else bias[rows])]
    else:
        columns = slice(rank * layer.columns, (rank + 1) * layer.columns)
        pairs = [(layer.weight, weight[:, columns]), (layer.bias, bias)]
    for parameter, values in pairs:
        if parameter is not None and values is not None:
            parameter.data.copy_(values)
