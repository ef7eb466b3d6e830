"""The probability travels as one more column, and the expert's rank multiplies by it."""


class _There(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, matrix):
        me = dist.get_rank()
        ctx.going, ctx.coming = matrix[me].tolist(), matrix[:, me].tolist()
        out = rows.new_zeros(sum(ctx.coming), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), ctx.coming, ctx.going)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_zeros(sum(ctx.going), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.going, ctx.coming)
        return out, None


class ExpertParallelMLP(nn.Module):
    def __init__(self, d_model, d_hidden, num_experts):
        super().__init__()
        ranks = dist.get_world_size()
        if num_experts % ranks != 0:
            raise ValueError("num_experts must be divisible by the world size")
        self.num_experts, self.local = num_experts, num_experts // ranks
        self.router = nn.Linear(d_model, num_experts, bias=False)
        for i in range(self.local):
            expert = nn.Sequential(
                nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model)
            )
            setattr(self, f"expert_{i}", expert)

    def forward(self, inputs):
        me, ranks = dist.get_rank(), dist.get_world_size()
        probabilities = torch.softmax(self.router(inputs), dim=1)
        chosen = probabilities.argmax(dim=1)
        mine = torch.bincount(chosen, minlength=self.num_experts)
        everyone = torch.empty(ranks * self.num_experts, dtype=torch.int64)
        dist.all_gather_into_tensor(everyone, mine)
        everyone = everyone.view(ranks, ranks, self.local)  # sender, receiver, expert
        order = torch.argsort(chosen, stable=True)
        rows = torch.cat([inputs, probabilities.gather(1, chosen[:, None])], dim=1)[order]
        rows = _There.apply(rows, everyone.sum(2))
        expert_of = torch.arange(self.local).repeat(ranks)
        expert_of = expert_of.repeat_interleave(everyone[:, me].flatten())
        pieces, places = [], []
        for i in range(self.local):
            place = torch.where(expert_of == i)[0]
            tokens, probability = rows[place].split([inputs.shape[1], 1], dim=1)
            pieces.append(getattr(self, f"expert_{i}")(tokens) * probability)
            places.append(place)
        computed = torch.cat(pieces)[torch.cat(places).argsort()]
        return _There.apply(computed, everyone.sum(2).T)[order.argsort()]

    @torch.no_grad()
    def load_full(self, router_weight, expert_states):
        self.router.weight.copy_(router_weight)
        for i in range(self.local):
            state = expert_states[dist.get_rank() * self.local + i]
            for name, parameter in getattr(self, f"expert_{i}").named_parameters():
                parameter.copy_(state[name])
