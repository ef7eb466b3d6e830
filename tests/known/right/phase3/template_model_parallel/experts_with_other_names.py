"""The expert's number travels with each token, as an integer; the attributes have other names."""


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.sizes = sent, received
        came = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(came, rows.contiguous(), received, sent)
        return came

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.sizes
        back = grad.new_empty((sum(sent), *grad.shape[1:]))
        dist.all_to_all_single(back, grad.contiguous(), sent, received)
        return back, None, None


class ExpertParallelMLP(nn.Module):
    def __init__(self, d_model, d_hidden, num_experts):
        super().__init__()
        n, r = dist.get_world_size(), dist.get_rank()
        if num_experts % n:
            raise ValueError(f"num_experts={num_experts} cannot be divided by {n}")
        self.per_rank = num_experts // n
        self.gate = nn.Linear(d_model, num_experts, bias=False)
        self.mine = nn.ModuleDict(
            {
                str(r * self.per_rank + i): nn.Sequential(
                    nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model)
                )
                for i in range(self.per_rank)
            }
        )

    def forward(self, inputs):
        n = dist.get_world_size()
        best, expert = self.gate(inputs).softmax(-1).max(-1)
        target = expert // self.per_rank
        where = [torch.nonzero(target == rank).flatten() for rank in range(n)]
        sent = [len(index) for index in where]
        sizes = torch.empty(n, dtype=torch.long)
        dist.all_to_all_single(sizes, torch.tensor(sent))
        received = sizes.tolist()
        order = torch.cat(where)
        numbers = torch.empty(sum(received), dtype=torch.long)
        dist.all_to_all_single(numbers, expert[order], received, sent)
        tokens = _Swap.apply(inputs.index_select(0, order), sent, received)
        results = torch.zeros_like(tokens)
        for number, layer in self.mine.items():
            index = (numbers == int(number)).nonzero(as_tuple=True)[0]
            results = results.index_add(0, index, layer(tokens[index]))
        home = _Swap.apply(results, received, sent)
        return torch.zeros_like(inputs).index_copy(0, order, home) * best[:, None]

    def load_full(self, router_weight, expert_states):
        with torch.no_grad():
            self.gate.weight.copy_(router_weight)
        for number, layer in self.mine.items():
            layer.load_state_dict(expert_states[int(number)])
