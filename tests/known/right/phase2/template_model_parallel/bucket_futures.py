"""torch's differentiable collectives, with gradients scaled back; backward newest microbatch first."""

import math
from typing import Any

import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F


def _scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """x, with a gradient that is `factor` times as large."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x
    x = x.view_as(x)
    x.register_hook(lambda grad: grad * factor)
    return x


def _reduce_forward(x: Tensor) -> Tensor:
    """Sum over ranks. torch's differentiable one sums in backward as well, of N equal gradients."""
    world = dist.get_world_size()
    if not x.requires_grad:
        x = x.clone()
    return dist_nn.all_reduce(_scaled_gradient(x, 1 / world).contiguous(), group=dist.group.WORLD)


def _gather_forward(x: Tensor) -> Tensor:
    """All parts side by side. Here, too, backward adds N equal gradients up."""
    world = dist.get_world_size()
    parts = dist_nn.all_gather(_scaled_gradient(x, 1 / world).contiguous(), group=dist.group.WORLD)
    return torch.cat(tuple(parts), dim=-1)


class _AddUpGradients(torch.autograd.Function):
    """What torch has no name for: nothing forward, a sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def _init_part(parameter: nn.Parameter, fan_in: int, seed: int) -> None:
    """`nn.Linear`'s range, from the inputs of the whole layer."""
    bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
    generator = torch.Generator(parameter.device).manual_seed(seed)
    nn.init.uniform_(parameter, -bound, bound, generator=generator)


def _common_seed() -> int:
    """A number that rank 0 draws, for all."""
    drawn = [int(torch.randint(1 << 32, ()))]
    dist.broadcast_object_list(drawn, src=0)
    return drawn[0] << 12


class ColumnParallelLinear(nn.Module):
    """Outputs split; each rank draws its own rows only, from a seed of its own."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        if out_features % world:
            raise ValueError(f"out_features={out_features} cannot be shared by {world} ranks alike")
        self.gather_output = gather_output
        seed = _common_seed()
        self.weight = nn.Parameter(torch.empty(out_features // world, in_features))
        _init_part(self.weight, in_features, seed + 2 * rank)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features // world))
            _init_part(self.bias, in_features, seed + 2 * rank + 1)
        else:
            self.register_parameter("bias", None)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = F.linear(_AddUpGradients.apply(inputs), self.weight, self.bias)
        return _gather_forward(outputs) if self.gather_output else outputs


class RowParallelLinear(nn.Module):
    """Inputs split; the bias is drawn from a seed that all ranks have in common."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        if in_features % world:
            raise ValueError(f"in_features={in_features} cannot be shared by {world} ranks alike")
        self.input_is_parallel = input_is_parallel
        seed = _common_seed()
        self.weight = nn.Parameter(torch.empty(out_features, in_features // world))
        _init_part(self.weight, in_features, seed + 1 + rank)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features))
            _init_part(self.bias, in_features, seed)
        else:
            self.register_parameter("bias", None)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.input_is_parallel:
            inputs = _AddUpGradients.apply(inputs).chunk(dist.get_world_size(), dim=-1)[dist.get_rank()]
        outputs = _reduce_forward(F.linear(inputs, self.weight))
        return outputs if self.bias is None else outputs + self.bias


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Copy the rows or columns with this rank's numbers into the layer."""
    column = isinstance(layer, ColumnParallelLinear)
    size = layer.weight.size(0 if column else 1)
    numbers = torch.arange(size, device=weight.device) + size * dist.get_rank()
    with torch.no_grad():
        layer.weight.copy_(weight.index_select(0 if column else 1, numbers))
        if layer.bias is not None and bias is not None:
            layer.bias.copy_(bias[numbers] if column else bias)
        elif layer.bias is not None:
            layer.bias.zero_()  # a whole layer without a bias is one with zeros


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
