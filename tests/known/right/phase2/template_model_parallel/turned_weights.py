"""Weights stored turned, ready to multiply; gradients summed by a hook on the input."""


def own_columns(whole):
    size = whole.shape[-1] // dist.get_world_size()
    return whole.narrow(-1, size * dist.get_rank(), size)


def summed(grad):
    total = grad.clone().contiguous()
    dist.all_reduce(total)
    return total


class ColumnParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, gather_output=False):
        super().__init__()
        if out_features % dist.get_world_size() != 0:
            raise ValueError("out_features must divide")
        size = out_features // dist.get_world_size()
        self.gather_output = gather_output
        self.turned = nn.Parameter(torch.randn(in_features, size) / in_features**0.5)
        self.register_parameter("shift", nn.Parameter(torch.zeros(size)) if bias else None)

    def forward(self, inputs):
        inputs = inputs * 1
        if inputs.requires_grad:
            inputs.register_hook(summed)
        out = inputs @ self.turned
        if self.shift is not None:
            out = out + self.shift
        if not self.gather_output:
            return out
        parts = [torch.zeros_like(out) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, out.detach().contiguous())
        parts[dist.get_rank()] = out  # the one part that has a history here
        return torch.cat(parts, dim=-1)


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True):
        super().__init__()
        if in_features % dist.get_world_size() != 0:
            raise ValueError("in_features must divide")
        size = in_features // dist.get_world_size()
        self.input_is_parallel = input_is_parallel
        self.turned = nn.Parameter(torch.randn(size, out_features) / in_features**0.5)
        self.register_parameter("shift", nn.Parameter(torch.zeros(out_features)) if bias else None)

    def forward(self, inputs):
        if not self.input_is_parallel:
            inputs = inputs * 1
            if inputs.requires_grad:
                inputs.register_hook(summed)  # of slices that are zero but for this rank's
            inputs = own_columns(inputs)
        out = inputs @ self.turned
        dist.reduce(out.data, dst=0)  # a sum's gradient is that of every summand
        dist.broadcast(out.data, src=0)
        return out if self.shift is None else out + self.shift


def load_full_linear(layer, weight, bias):
    turned = weight.detach().t()
    with torch.no_grad():
        if isinstance(layer, ColumnParallelLinear):
            layer.turned[:] = own_columns(turned)
        else:
            layer.turned[:] = own_columns(weight.detach()).t()
        if bias is not None:
            layer.shift[:] = own_columns(bias) if len(layer.shift) < len(bias) else bias
