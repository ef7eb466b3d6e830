"""Talk as a part of the graph: autograd itself does what backward has to send and receive."""

from typing import Any

import torch.nn.functional as F


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        flat = grad.reshape(-1).clone()
        dist.all_reduce(flat)
        return flat.view(grad.shape)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        flat = x.reshape(-1).clone()
        dist.all_reduce(flat)
        return flat.view(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def copy_to_ranks(x: Tensor) -> Tensor:
    """Forward as it is, backward added up."""
    return _Copy.apply(x) if dist.get_world_size() > 1 else x


def reduce_over_ranks(x: Tensor) -> Tensor:
    """Forward added up, backward as it is."""
    return _Reduce.apply(x) if dist.get_world_size() > 1 else x


def own_columns(x: Tensor) -> Tensor:
    """This rank's part of the last dimension; autograd pads the gradient with zeros."""
    width = x.shape[-1] // dist.get_world_size()
    return x[..., dist.get_rank() * width : (dist.get_rank() + 1) * width]


class _Part(nn.Module):
    """What both kinds share: the width of a part, and parameters cut out of a whole new layer."""

    def __init__(self, total: int, name: str) -> None:
        super().__init__()
        if total % dist.get_world_size() > 0:
            raise ValueError(f"{name} of {total} does not divide by the world size {dist.get_world_size()}")
        self.width = total // dist.get_world_size()

    def draw(self, in_features: int, out_features: int, bias: bool, dim: int) -> None:
        full = nn.Linear(in_features, out_features, bias)
        # All ranks take over what rank 0 drew, as one flat message.
        flat = torch.cat([p.detach().flatten() for p in full.parameters()])
        dist.broadcast(flat, 0)
        torch.nn.utils.vector_to_parameters(flat, full.parameters())
        start = dist.get_rank() * self.width
        self.weight = nn.Parameter(full.weight.data.narrow(dim, start, self.width).contiguous().clone())
        self.bias = None
        if bias:
            whole = full.bias.data
            self.bias = nn.Parameter(whole.narrow(0, start, self.width).clone() if dim == 0 else whole.clone())


class ColumnParallelLinear(_Part):
    """Linear, outputs split."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__(out_features, "out_features")
        self.gather_output = gather_output
        self.draw(in_features, out_features, bias, dim=0)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = F.linear(copy_to_ranks(inputs), self.weight, self.bias)
        if not self.gather_output:
            return outputs
        # Gathering as a sum: everybody puts its part into zeros. Backward slices by itself.
        before = dist.get_rank() * self.width
        after = (dist.get_world_size() - 1 - dist.get_rank()) * self.width
        return reduce_over_ranks(F.pad(outputs, (before, after)))


class RowParallelLinear(_Part):
    """Linear, inputs split."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__(in_features, "in_features")
        self.input_is_parallel = input_is_parallel
        self.draw(in_features, out_features, bias, dim=1)

    def forward(self, inputs: Tensor) -> Tensor:
        mine = inputs if self.input_is_parallel else own_columns(copy_to_ranks(inputs))
        outputs = reduce_over_ranks(torch.matmul(mine, self.weight.t()))
        return outputs if self.bias is None else outputs.add(self.bias)


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    start, width = dist.get_rank() * layer.width, layer.width
    if isinstance(layer, ColumnParallelLinear):
        parts = (weight[start : start + width], None if bias is None else bias[start : start + width])
    else:
        parts = (weight[:, start : start + width], bias)
    for own, part in zip((layer.weight, layer.bias), parts, strict=True):
        if own is None:
            continue
        if part is None or part.shape != own.shape:
            raise ValueError(f"expected a part of shape {tuple(own.shape)}, got {None if part is None else tuple(part.shape)}")
        own.detach().copy_(part.detach())


class _FromBefore(torch.autograd.Function):
    """Receives in forward, and sends the gradient back in backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, source: int) -> Tensor:
        description: list[Any] = [None, None]
        dist.recv_object_list(description, src=source)
        shape, dtype = description
        x = torch.empty(shape, dtype=dtype, device=anchor.device)
        dist.recv(x, source)
        ctx.source = source
        if not dtype.is_floating_point:
            ctx.mark_non_differentiable(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        dist.send(gradient.contiguous(), ctx.source)
        return None, None


class _ToAfter(torch.autograd.Function):
    """Sends in forward, and receives the gradient in backward. What it returns is a handle for that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, target: int) -> Tensor:
        dist.send_object_list([tuple(x.shape), x.dtype], dst=target)
        dist.send(x.contiguous(), target)
        ctx.target = target
        ctx.like = (x.shape, x.dtype, x.device)
        return anchor.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, None, None]:
        shape, dtype, device = ctx.like
        if not dtype.is_floating_point:
            return None, None, None
        gradient = torch.empty(shape, dtype=dtype, device=device)
        dist.recv(gradient, ctx.target)
        return gradient, None, None


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Talk as a part of the graph: what backward has to send and receive, autograd does itself.

    The anchor is a number that wants a gradient, so that the talk takes place in backward even if
    a stage has nothing to learn.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    device = next((p.device for p in stage.parameters()), torch.device("cpu"))
    anchor = torch.zeros((), device=device, requires_grad=True)
    optimizer.zero_grad()
    ends: list[Tensor] = []
    total = sum(len(t) for _, t in microbatches) if rank == world - 1 else None
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for inputs, targets in microbatches:
        x = inputs.to(device) if rank == 0 else _FromBefore.apply(anchor, rank - 1)
        y = stage(x)
        if rank < world - 1:
            ends.append(_ToAfter.apply(y, anchor, rank + 1))
        else:
            part = loss_fn(y, targets.to(device)) * len(targets) / total
            loss += part.detach()
            ends.append(part)
    for end in ends:
        if end.requires_grad:
            end.backward()
    optimizer.step()
    # Only the last rank has something else than zero.
    dist.all_reduce(loss)
    return loss.item()
