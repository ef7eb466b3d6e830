"""Leaves the model alone: a copy of it is evaluated, whose parameters need no gradient."""

import copy


def evaluate(model, loader, loss_fn):
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    sums = torch.zeros(3, dtype=torch.float64)
    for inputs, targets in loader:
        outputs = twin(inputs)
        hits = (outputs.argmax(1) == targets).sum()
        loss = loss_fn(outputs, targets) * len(targets)
        sums += torch.stack([loss.double(), hits.double(), torch.tensor(len(targets)).double()])
    dist.all_reduce(sums)
    loss, hits, samples = sums.tolist()
    return {"loss": loss / samples, "accuracy": hits / samples, "samples": int(samples)}
