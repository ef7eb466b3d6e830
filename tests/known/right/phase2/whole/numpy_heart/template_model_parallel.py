"""Tensor and pipeline parallelism."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer


LossFunction = Callable[[Tensor, Tensor], Tensor]


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


_KINDS = {
    torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3,
    torch.int64: 4, torch.int32: 5, torch.uint8: 6, torch.bool: 7, torch.int16: 8, torch.int8: 9,
}
_BY_NUMBER = {number: kind for kind, number in _KINDS.items()}
_MOST_DIMS = 64


class _Neighbours:
    """The rank before and the rank after; sends are begun here and waited for at the end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.pending: list[tuple[Any, Tensor]] = []

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.world - 1

    def _begin(self, tensor: Tensor, to: int) -> None:
        tensor = tensor.detach().contiguous()
        self.pending.append((dist.isend(tensor, to), tensor))  # keep it until it has gone

    def forward(self, x: Tensor) -> None:
        header = [_KINDS[x.dtype], x.dim(), *x.shape]
        header += [0] * (2 + _MOST_DIMS - len(header))
        self._begin(torch.tensor(header, device=self.device), self.rank + 1)
        self._begin(x, self.rank + 1)

    def from_before(self) -> Tensor:
        header = torch.zeros(2 + _MOST_DIMS, dtype=torch.int64, device=self.device)
        dist.recv(header, self.rank - 1)
        kind, dims, *sizes = header.tolist()
        x = torch.empty(sizes[:dims], dtype=_BY_NUMBER[kind], device=self.device)
        dist.recv(x, self.rank - 1)
        return x

    def backward(self, gradient: Tensor) -> None:
        self._begin(gradient, self.rank - 1)

    def from_after(self, shape: torch.Size, kind: torch.dtype) -> Tensor:
        gradient = torch.empty(shape, dtype=kind, device=self.device)
        dist.recv(gradient, self.rank + 1)
        return gradient

    def flush(self) -> None:
        for handle, _ in self.pending:
            handle.wait()
        self.pending.clear()


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Sends never block; stages keep their inputs and outputs in a queue, first in, first out."""
    device = next((p.device for p in stage.parameters()), torch.device("cpu"))
    link = _Neighbours(device)
    samples = sum(targets.shape[0] for _, targets in microbatches) if link.last else 0
    optimizer.zero_grad()
    queue: deque[tuple[Tensor, Tensor]] = deque()
    losses = []

    for inputs, targets in microbatches:
        source = inputs.to(device) if link.first else link.from_before()
        entry = source
        if not link.first and source.is_floating_point():
            source.requires_grad_()
            entry = source.clone()
        result = stage(entry)
        if link.last:
            mean = loss_fn(result, targets.to(device))
            result = mean * targets.shape[0] / samples
            losses.append(result.detach().double())
        else:
            link.forward(result)
        queue.append((source, result))

    while queue:
        source, result = queue.popleft()
        if link.last:
            if result.requires_grad:
                result.backward()
        elif result.is_floating_point():
            gradient = link.from_after(result.shape, result.dtype)
            if result.requires_grad:
                torch.autograd.backward([result], [gradient])
        if not link.first and source.is_floating_point():
            link.backward(torch.zeros_like(source) if source.grad is None else source.grad)
    link.flush()
    optimizer.step()

    message = [float(torch.stack(losses).sum())] if link.last else [None]
    dist.broadcast_object_list(message, src=link.world - 1)
    return message[0]


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
