"""Tokens as point-to-point messages, a Function for each direction; experts one after another."""


class _Travel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens, outgoing, incoming):
        ctx.sizes = outgoing, incoming
        return _mail(tokens, outgoing, incoming)

    @staticmethod
    def backward(ctx, grad):
        outgoing, incoming = ctx.sizes
        return _mail(grad, incoming, outgoing), None, None


def _mail(tokens, outgoing, incoming):
    me = dist.get_rank()
    parts = [part.contiguous() for part in tokens.split(outgoing)]
    boxes = [tokens.new_zeros(size, tokens.shape[-1]) for size in incoming]
    works = []
    for peer in range(dist.get_world_size()):
        if peer == me:
            boxes[peer].copy_(parts[peer])
            continue
        if outgoing[peer]:
            works.append(dist.isend(parts[peer], peer))
        if incoming[peer]:
            works.append(dist.irecv(boxes[peer], peer))
    for work in works:
        work.wait()
    return torch.cat(boxes)


class ExpertParallelMLP(nn.Module):
    def __init__(self, d_model, d_hidden, num_experts):
        super().__init__()
        world = dist.get_world_size()
        if num_experts % world != 0:
            raise ValueError("num_experts must be a multiple of the world size")
        self.total, self.per_rank = num_experts, num_experts // world
        self.gate = nn.Linear(d_model, num_experts, bias=False)
        self.mlps = nn.ModuleDict()
        for index in range(self.per_rank):
            number = dist.get_rank() * self.per_rank + index
            self.mlps[str(number)] = nn.Sequential(
                nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model)
            )

    def forward(self, x):
        world = dist.get_world_size()
        weights = torch.softmax(self.gate(x), 1)
        pick = weights.argmax(1)
        table = [None] * world
        dist.all_gather_object(table, [int((pick == e).sum()) for e in range(self.total)])
        mine = table[dist.get_rank()]
        rows = [(pick == e).nonzero().flatten() for e in range(self.total)]
        order = torch.cat(rows)
        p = self.per_rank
        outgoing = [sum(mine[r * p : (r + 1) * p]) for r in range(world)]
        start = dist.get_rank() * p
        incoming = [sum(row[start : start + p]) for row in table]
        arrived = _Travel.apply(x[order], outgoing, incoming)
        pieces, at = [], 0
        for row in table:
            for e in range(start, start + p):
                pieces.append(self.mlps[str(e)](arrived[at : at + row[e]]))
                at += row[e]
        back = _Travel.apply(torch.cat(pieces), incoming, outgoing)
        out = torch.zeros_like(x).index_add(0, order, back)
        return out * weights.gather(1, pick[:, None])

    @torch.no_grad()
    def load_full(self, router_weight, expert_states):
        self.gate.weight.copy_(
            router_weight
        )
        for number, mlp in self.mlps.items():
            for name, value in mlp.named_parameters():
                value.copy_(expert_states[int(number)][name])
