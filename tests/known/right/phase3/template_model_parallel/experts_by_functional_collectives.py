"""torch's own differentiable all-to-all, and expert numbers that travel with the tokens."""

from torch.distributed.nn.functional import all_to_all_single


class ExpertParallelMLP(nn.Module):
    def __init__(self, d_model, d_hidden, num_experts):
        super().__init__()
        n = dist.get_world_size()
        share, rest = divmod(num_experts, n)
        if rest:
            raise ValueError(f"{num_experts} % {n} != 0")
        self.begin, self.share = dist.get_rank() * share, share
        self.router = nn.Linear(d_model, num_experts, bias=False)
        layers = [nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model)]
        self.experts = nn.ModuleList([nn.Sequential(*layers)])
        for _ in range(share - 1):
            layers = [nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model)]
            self.experts.append(nn.Sequential(*layers))

    def forward(self, tokens):
        n = dist.get_world_size()
        chance = self.router(tokens).softmax(-1)
        best, number = chance.topk(1, dim=-1)
        number = number.flatten()
        rank_of = number // self.share
        by_rank = torch.argsort(rank_of, stable=True)
        send = torch.stack([(rank_of == r).sum() for r in range(n)])
        take = torch.zeros_like(send)
        dist.all_to_all_single(take, send)
        send, take = send.tolist(), take.tolist()
        numbers = torch.zeros(sum(take), dtype=number.dtype)
        dist.all_to_all_single(numbers, number[by_rank], take, send)
        here = all_to_all_single(
            tokens.new_empty(sum(take), tokens.size(1)), tokens[by_rank].contiguous(), take, send
        )
        out = here * 0
        for index, expert in enumerate(self.experts):
            where = (numbers == self.begin + index)[:, None]
            picked = torch.where(where, here, torch.zeros(()))
            out = out + torch.where(where, expert(picked), torch.zeros(()))
        home = all_to_all_single(torch.empty_like(tokens), out.contiguous(), send, take)
        inverse = torch.empty_like(by_rank)
        inverse[by_rank] = torch.arange(len(by_rank))
        return home[inverse] * best

    def load_full(self, router_weight, expert_states):
        self.router.load_state_dict({"weight": router_weight})
        for expert, state in zip(self.experts, expert_states[self.begin :]):
            expert.load_state_dict(state)
