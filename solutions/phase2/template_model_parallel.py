"""Phase 2, third file: split one model over N ranks, within its layers or between them.

Every function uses the default process group, which already exists. N is the world size, r is this
rank. Read GUIDELINES.md, "Tensor parallelism" and "Pipelines". `gradsync check` shows your
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

### BEGIN SOLUTION
# isort: split
from typing import Any

import torch.nn.functional as F

### END SOLUTION
LossFunction = Callable[[Tensor, Tensor], Tensor]


### BEGIN SOLUTION
class _CopyToRanks(torch.autograd.Function):
    """Megatron's f: pass on an input that all ranks share; backward sums its gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad


class _SumOverRanks(torch.autograd.Function):
    """Megatron's g: sum the ranks' tensors; backward passes the sum's gradient on unchanged."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _GatherColumns(torch.autograd.Function):
    """Concatenate the ranks' slices of the last dimension; backward takes this rank's slice."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in _ranks()]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _own_slice(grad, dim=-1).contiguous()


class _TakeColumns(torch.autograd.Function):
    """Take this rank's slice of the last dimension; backward gathers the gradient's slices."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor) -> Tensor:
        return _own_slice(whole, dim=-1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _GatherColumns.forward(ctx, grad)


def _ranks() -> range:
    return range(dist.get_world_size())


def _own_slice(whole: Tensor, dim: int) -> Tensor:
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def _check_split(name: str, features: int) -> None:
    world_size = dist.get_world_size()
    if features % world_size:
        raise ValueError(f"{name}={features} can't be split evenly over {world_size} ranks")


def _own_parameter(whole: Tensor, dim: int) -> nn.Parameter:
    """Return this rank's part of a full tensor; the parts differ even with equal seeds."""
    return nn.Parameter(_own_slice(whole.detach(), dim).clone())


### END SOLUTION


class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are split over the ranks: each rank has rows of the weight.

    The input (..., in_features) is the same on every rank. The output (..., out_features/N) is this
    rank's part, or with `gather_output` all of it, (..., out_features), on every rank. Forward and
    backward give the same results as `nn.Linear`; in particular, every rank gets the complete
    gradient of the input. The ranks exchange activations and their gradients, but no weights. A new
    layer has random weights, as in `nn.Linear`.

    Attributes:
        weight: (out_features/N, in_features), this rank's rows.
        bias: (out_features/N,), or None.

    Raises:
        ValueError: if `out_features` is not divisible by N.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        _check_split("out_features", out_features)
        whole = nn.Linear(in_features, out_features, bias)
        self.gather_output = gather_output
        self.weight = _own_parameter(whole.weight, dim=0)
        self.bias = _own_parameter(whole.bias, dim=0) if bias else None
        ### END SOLUTION

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (..., in_features) to outputs (..., out_features/N), or to all outputs."""
        ### BEGIN SOLUTION
        outputs = F.linear(_CopyToRanks.apply(inputs), self.weight, self.bias)
        return _GatherColumns.apply(outputs) if self.gather_output else outputs
        ### END SOLUTION


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are split over the ranks: each rank has columns of the weight.

    The input (..., in_features/N) is this rank's part. With `input_is_parallel=False` it is the
    full input (..., in_features), and the layer takes this rank's part. The output
    (..., out_features) is the same on every rank, and the bias is added once. Forward and backward
    give the same results as `nn.Linear`. The ranks exchange activations and their gradients, but no
    weights. A new layer has random weights, as in `nn.Linear`, and the same bias on every rank.

    Attributes:
        weight: (out_features, in_features/N), this rank's columns.
        bias: (out_features,), the same on every rank, or None.

    Raises:
        ValueError: if `in_features` is not divisible by N.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        _check_split("in_features", in_features)
        whole = nn.Linear(in_features, out_features, bias=False)
        self.input_is_parallel = input_is_parallel
        self.weight = _own_parameter(whole.weight, dim=1)
        # Zeros are the same on every rank for any seed, without communication.
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        ### END SOLUTION

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (..., in_features/N), or all inputs, to outputs (..., out_features)."""
        ### BEGIN SOLUTION
        part = inputs if self.input_is_parallel else _TakeColumns.apply(inputs)
        total = _SumOverRanks.apply(F.linear(part, self.weight))
        return total if self.bias is None else total + self.bias
        ### END SOLUTION


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Copy this rank's part of a full layer into `layer`; its parameters stay the same objects.

    Args:
        layer: a column-parallel or row-parallel layer.
        weight: the full weight (out_features, in_features), as in `nn.Linear`.
        bias: the full bias (out_features,), or None if the layer has none.
    """
    ### BEGIN SOLUTION
    by_rows = isinstance(layer, ColumnParallelLinear)
    with torch.no_grad():
        layer.weight.copy_(_own_slice(weight, dim=0 if by_rows else 1))
        if layer.bias is not None and bias is not None:
            layer.bias.copy_(_own_slice(bias, dim=0) if by_rows else bias)
    ### END SOLUTION


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Take one optimizer step of a model whose stages are on consecutive ranks.

    This is GPipe: first forward for all microbatches, then backward for all. Rank 0 gets the
    inputs, each rank sends its stage's outputs to the next rank, and the last rank computes the
    loss from the targets. The gradients of the activations are sent back the same way. Nothing else
    of the batch is sent. Activations may have any shape and dtype, which the receiver learns from
    the sender. There may be any number of ranks, even one, and a stage may be frozen. The stages
    stay in the mode that they are in. After the step the parameters still have their gradients.
    These equal the unsplit model's gradients on the whole batch, even if microbatches differ in
    size.

    Args:
        stage: this rank's part of the model.
        microbatches: `(inputs, targets)` for each microbatch, the same number on every rank. Only
            rank 0 reads the inputs and only the last rank reads the targets; on other ranks they
            may be None.
        loss_fn: a function that returns the mean loss of a microbatch, given outputs and targets.
        optimizer: the optimizer of this stage's parameters.

    Returns:
        The mean loss of the whole batch, on every rank.
    """
    ### BEGIN SOLUTION
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    device = next(stage.parameters(), torch.empty(0)).device
    optimizer.zero_grad()

    passes = []
    for inputs, _ in microbatches:
        arrived = inputs if rank == 0 else _receive(rank - 1, device)
        if rank != 0:
            arrived.requires_grad_(arrived.is_floating_point())
        outputs = stage(arrived.clone())  # the stage's first module may work in place
        if rank != last:
            _send(outputs.detach(), rank + 1)
        passes.append((arrived, outputs))

    samples = sum(len(targets) for _, targets in microbatches) if rank == last else 0
    loss = 0.0
    for (arrived, outputs), (_, targets) in zip(passes, microbatches, strict=True):
        if rank == last:
            share = loss_fn(outputs, targets) * (len(targets) / samples)
            share.backward()
            loss += share.item()
        else:
            gradient = _receive(rank + 1, device)
            if outputs.requires_grad:  # false if the first stage is frozen
                outputs.backward(gradient)
        if rank != 0:
            _send(torch.zeros_like(arrived) if arrived.grad is None else arrived.grad, rank - 1)

    optimizer.step()
    shared = torch.tensor(loss, dtype=torch.float64, device=device)
    dist.broadcast(shared, src=last)
    return shared.item()
    ### END SOLUTION


### BEGIN SOLUTION
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
MAX_DIMS = 8


def _send(tensor: Tensor, to: int) -> None:
    """Send a tensor of any shape: first its dtype and shape, then its values."""
    header = torch.zeros(2 + MAX_DIMS, dtype=torch.int64)
    header[:2] = torch.tensor([DTYPES.index(tensor.dtype), tensor.dim()])
    header[2 : 2 + tensor.dim()] = torch.tensor(tensor.shape, dtype=torch.int64)
    dist.send(header.to(tensor.device), to)
    dist.send(tensor.contiguous(), to)


def _receive(source: int, device: torch.device) -> Tensor:
    header = torch.empty(2 + MAX_DIMS, dtype=torch.int64, device=device)
    dist.recv(header, source)
    dtype, dims, *shape = header.tolist()
    tensor = torch.empty(shape[:dims], dtype=DTYPES[dtype], device=device)
    dist.recv(tensor, source)
    return tensor


### END SOLUTION


def main() -> None:
    """Compare two parallel layers with unsplit ones; run this with torchrun on 2 ranks."""
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
            f"{dist.get_world_size()} ranks, equal to the unsplit layers: {'yes' if same else 'NO'}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
