"""Two reductions in float64, of means weighted by each rank's tokens."""


def load_balancing_loss(probabilities, chosen):
    n, e = dist.get_world_size(), probabilities.size(-1)
    one_hot = nn.functional.one_hot(chosen, e)
    fractions = one_hot.sum(0).double()
    dist.all_reduce(fractions)
    tokens = fractions.sum().item()
    means = probabilities.detach().double().sum(0)
    dist.all_reduce(means)
    fractions, means = fractions / tokens, means / tokens
    value = (fractions * means).sum() * e
    weights = (fractions * e * n / tokens).to(probabilities.dtype)
    local = (probabilities * weights).sum()
    return local - local.detach() + value.to(probabilities.dtype)
