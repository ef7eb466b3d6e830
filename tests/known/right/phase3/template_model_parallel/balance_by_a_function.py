"""The balance as an autograd function; the ranks' sums are gathered as objects."""


class _Balance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, probabilities, chosen):
        n = probabilities.shape[1]
        own = [(chosen == e).sum().item() for e in range(n)], probabilities.double().sum(0).tolist()
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        counts = torch.tensor([c for c, _ in every], dtype=torch.float64).sum(0)
        sums = torch.tensor([s for _, s in every], dtype=torch.float64).sum(0)
        tokens = max(1.0, counts.sum().item())
        ctx.row = n * counts / tokens / tokens * dist.get_world_size()
        ctx.like = probabilities
        return (n * counts / tokens * sums / tokens).sum().to(probabilities.dtype)

    @staticmethod
    def backward(ctx, grad):
        return (grad * ctx.row).to(ctx.like.dtype).expand_as(ctx.like).clone(), None


def load_balancing_loss(probabilities, chosen):
    return _Balance.apply(probabilities, chosen)
