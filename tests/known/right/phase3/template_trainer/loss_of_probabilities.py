"""The loss from log-probabilities, and the number of tokens gathered from all ranks."""


def token_weighted_loss(logits, targets, ignore_index=-100):
    counts = targets.ne(ignore_index)
    number = torch.tensor([counts.sum().item()], dtype=torch.float64)
    dist.all_reduce(number)
    total = max(number.item(), 1.0)
    scores = torch.log_softmax(logits.float(), dim=-1)
    own = scores.gather(-1, targets.masked_fill(~counts, 0).unsqueeze(-1)).squeeze(-1)
    return -(own * counts).sum() * dist.get_world_size() / total
