"""The row layer's bias lives on rank 0 alone, which adds it to its product before the sum."""


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True):
        super().__init__()
        world_size = dist.get_world_size()
        if in_features / world_size != in_features // world_size:
            raise ValueError(f"in_features={in_features} on {world_size} ranks")
        bias = bias and dist.get_rank() == 0
        self.own = nn.Linear(in_features // world_size, out_features, bias=bias)
        self.input_is_parallel = input_is_parallel

    def forward(self, inputs):
        if not self.input_is_parallel:
            inputs = Taken.apply(inputs)
        product = self.own(inputs)
        everyones = [torch.empty_like(product) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, product.detach().contiguous())
        others = sum(p for rank, p in enumerate(everyones) if rank != dist.get_rank())
        return product + others


class Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole):
        ctx.size = whole.shape[-1] // dist.get_world_size()
        ctx.start = ctx.size * dist.get_rank()
        return whole[..., ctx.start : ctx.start + ctx.size].clone()

    @staticmethod
    def backward(ctx, grad):
        answer = [None] * dist.get_world_size()
        dist.all_gather_object(answer, grad)
        return torch.cat(answer, dim=-1)


def load_full_linear(layer, weight, bias):
    rank = dist.get_rank()
    if isinstance(layer, RowParallelLinear):
        columns = layer.own.in_features
        with torch.no_grad():
            layer.own.weight.copy_(weight[:, rank * columns : (rank + 1) * columns])
            if layer.own.bias is not None and bias is not None:
                layer.own.bias.copy_(bias)
        return
    rows = layer.weight.shape[0]
    state = {"weight": weight[rank * rows : (rank + 1) * rows]}
    if bias is not None:
        state["bias"] = bias[rank * rows : (rank + 1) * rows]
    layer.load_state_dict(state)
