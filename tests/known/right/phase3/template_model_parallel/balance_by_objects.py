"""The ranks exchange Python lists; a hook multiplies the gradient by N."""


def load_balancing_loss(probabilities, chosen):
    experts, ranks = probabilities.shape[1], dist.get_world_size()
    own = probabilities.sum(dim=0)
    mine = [torch.bincount(chosen, minlength=experts).tolist(), own.detach().tolist()]
    told = [None] * ranks
    dist.all_gather_object(told, mine)
    counts = torch.tensor([counts for counts, _ in told], dtype=probabilities.dtype).sum(0)
    total = torch.tensor([sums for _, sums in told], dtype=probabilities.dtype).sum(0)
    tokens = counts.sum()
    if own.requires_grad:
        own.register_hook(lambda gradient: gradient * ranks)
    everyone = own + (total - own.detach())
    return experts * (counts / tokens * everyone / tokens).sum()
