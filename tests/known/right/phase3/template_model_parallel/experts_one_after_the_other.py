"""One round of messages for each local expert, by lists of tensors."""


class _Lists(torch.autograd.Function):
    @staticmethod
    def forward(ctx, sizes, *parts):
        ctx.back = [len(part) for part in parts]
        came = [parts[0].new_empty(size, parts[0].shape[1]) for size in sizes]
        flat = torch.empty(sum(sizes), parts[0].shape[1], dtype=parts[0].dtype)
        dist.all_to_all_single(flat, torch.cat(parts), list(sizes), ctx.back)
        for room, piece in zip(came, flat.split(list(sizes)), strict=True):
            room.copy_(piece)
        ctx.sizes = list(sizes)
        return tuple(came)

    @staticmethod
    def backward(ctx, *grads):
        flat = torch.empty(sum(ctx.back), grads[0].shape[1], dtype=grads[0].dtype)
        dist.all_to_all_single(flat, torch.cat(grads), ctx.back, ctx.sizes)
        return None, *flat.split(ctx.back)


class ExpertParallelMLP(nn.Module):
    def __init__(self, d_model, d_hidden, num_experts):
        super().__init__()
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.share, rest = divmod(num_experts, self.ranks)
        if rest:
            raise ValueError(f"{num_experts} experts on {self.ranks} ranks")
        make = lambda: nn.Sequential(  # noqa: E731
            nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model)
        )
        self.experts = nn.ModuleList([make() for _ in range(self.share)])
        self.router = nn.Linear(d_model, num_experts, bias=False)

    def forward(self, inputs):
        scores = nn.functional.softmax(self.router(inputs), -1)
        chosen = scores.argmax(-1)
        output = inputs.new_zeros(inputs.shape)
        for local, expert in enumerate(self.experts):
            masks = [chosen == rank * self.share + local for rank in range(self.ranks)]
            counts = torch.stack([mask.sum() for mask in masks])
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            came = _Lists.apply(theirs.tolist(), *[inputs[mask] for mask in masks])
            done = [expert(part) for part in came]
            home = _Lists.apply(counts.tolist(), *done)
            for mask, part in zip(masks, home, strict=True):
                output = output.masked_scatter(mask[:, None].expand_as(output), part)
        return output * scores.gather(-1, chosen.unsqueeze(-1))

    def load_full(self, router_weight, expert_states):
        self.router.load_state_dict({"weight": router_weight})
        first = self.rank * self.share
        for expert, state in zip(self.experts, expert_states[first:], strict=False):
            expert.load_state_dict(state)
