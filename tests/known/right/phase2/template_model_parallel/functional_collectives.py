"""The layers with functional collectives, which return what they make."""

import torch.distributed._functional_collectives as funcol


def everyone():
    return list(range(dist.get_world_size()))


class Identity(torch.autograd.Function):
    """Nothing forward, a sum over ranks backward, or the other way round."""

    @staticmethod
    def forward(ctx, x, sums_forward):
        ctx.sums_backward = not sums_forward
        return Identity.sum(x, sums_forward)

    @staticmethod
    def backward(ctx, grad):
        return Identity.sum(grad, ctx.sums_backward), None

    @staticmethod
    def sum(x, really):
        if not really:
            return x.clone()
        return funcol.wait_tensor(funcol.all_reduce(x.contiguous(), "sum", everyone()))


class Columns(torch.autograd.Function):
    """Gathered forward and cut backward, or the other way round."""

    @staticmethod
    def forward(ctx, x, gathers_forward):
        ctx.gathers_backward = not gathers_forward
        return Columns.move(x, gathers_forward)

    @staticmethod
    def backward(ctx, grad):
        return Columns.move(grad, ctx.gathers_backward), None

    @staticmethod
    def move(x, gathers):
        if not gathers:
            return x.tensor_split(dist.get_world_size(), -1)[dist.get_rank()].clone()
        stacked = funcol.all_gather_tensor(x.movedim(-1, 0).contiguous(), 0, everyone())
        return funcol.wait_tensor(stacked).movedim(0, -1)


class ColumnParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False):
        super().__init__()
        rows, rest = divmod(out_features, dist.get_world_size())
        if rest:
            raise ValueError(f"out_features: {out_features}")
        self.mine = nn.Linear(in_features, rows, bias)
        self.gathers = gather_output

    def forward(self, inputs):
        outputs = self.mine(Identity.apply(inputs, False))
        return Columns.apply(outputs, True) if self.gathers else outputs


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True):
        super().__init__()
        columns, rest = divmod(in_features, dist.get_world_size())
        if rest:
            raise ValueError(f"in_features: {in_features}")
        self.mine = nn.Linear(columns, out_features, bias=False)
        self.offset = nn.Parameter(torch.zeros(out_features)) if bias else 0.0
        self.splits = not input_is_parallel

    def forward(self, inputs):
        part = Columns.apply(inputs, False) if self.splits else inputs
        return Identity.apply(self.mine(part), True) + self.offset


def load_full_linear(layer, weight, bias):
    column = isinstance(layer, ColumnParallelLinear)
    target = layer.mine.bias if column else layer.offset
    world_size, rank = dist.get_world_size(), dist.get_rank()
    layer.mine.weight.data.copy_(weight.tensor_split(world_size, 0 if column else 1)[rank])
    if bias is not None:
        target.data.copy_(bias.tensor_split(world_size)[rank] if column else bias)
