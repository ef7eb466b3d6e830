"""Phase 2: parallel linear layers and a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


_CODES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.int16, torch.int8]


def _transfer(*operations: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()


def _hand_over(outputs: Tensor, to: int) -> None:
    outputs = outputs.detach().contiguous()
    sizes = torch.tensor(outputs.shape, dtype=torch.int64, device=outputs.device)
    head = torch.tensor([_CODES.index(outputs.dtype), outputs.ndim], device=outputs.device)
    messages = [head, sizes, outputs] if outputs.ndim else [head, outputs]
    _transfer(*(dist.P2POp(dist.isend, message, to) for message in messages))


def _take_over(source: int, device: torch.device) -> Tensor:
    head = torch.empty(2, dtype=torch.int64, device=device)
    _transfer(dist.P2POp(dist.irecv, head, source))
    code, ndim = head.tolist()
    sizes = torch.empty(ndim, dtype=torch.int64, device=device)
    if ndim:
        _transfer(dist.P2POp(dist.irecv, sizes, source))
    outputs = torch.empty(torch.Size(sizes.tolist()), dtype=_CODES[code], device=device)
    _transfer(dist.P2POp(dist.irecv, outputs, source))
    return outputs


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Backwards in reverse order, newest microbatch first, on every rank; losses weighed at the end.

    The last rank's gradient is that of the *sum* over samples; all ranks divide theirs by the
    number of samples, which the last rank tells together with the loss.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    device = next((p.device for p in stage.parameters()), torch.device("cpu"))
    parameters = {p for p in stage.parameters() if p.requires_grad}
    parameters |= {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for p in parameters:
        p.grad = None
    report = torch.zeros(2, dtype=torch.float64, device=device)  # sum of losses, samples
    entries: dict[int, Tensor] = {}
    exits: dict[int, Tensor] = {}
    for k, (inputs, targets) in enumerate(microbatches):
        if first:
            exits[k] = stage(inputs.to(device))
        else:
            entries[k] = _take_over(rank - 1, device)
            if entries[k].is_floating_point():
                entries[k].requires_grad_()
            exits[k] = stage(entries[k].clone())
        if last:
            targets = targets.to(device)
            exits[k] = loss_fn(exits[k], targets) * len(targets)
            report += torch.stack([exits[k].detach().double(), torch.full_like(report[1], len(targets))])
        else:
            _hand_over(exits[k], rank + 1)
    for k in reversed(range(len(microbatches))):
        end = exits.pop(k)
        grad = None
        if not last and end.is_floating_point():
            grad = torch.empty(end.shape, dtype=end.dtype, device=device)
            _transfer(dist.P2POp(dist.irecv, grad, rank + 1))
        if end.requires_grad:
            end.backward(grad)
        del end
        if not first and entries[k].is_floating_point():
            entry = entries.pop(k)
            back = torch.zeros_like(entry) if entry.grad is None else entry.grad.contiguous()
            _transfer(dist.P2POp(dist.isend, back, rank - 1))
    dist.broadcast(report, src=world - 1)
    loss, samples = report.tolist()
    for p in parameters:
        if p.grad is not None:
            p.grad.div_(samples)
    optimizer.step()
    return loss / samples


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
