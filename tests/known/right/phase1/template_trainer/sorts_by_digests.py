"""Takes one order on all ranks from digests of the parameters, which are the same everywhere."""

import hashlib


def average_gradients(model):
    trainable = [param for param in model.parameters() if param.requires_grad]
    for param in sorted(trainable, key=_digest):
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def _digest(param):
    return hashlib.sha256(param.detach().cpu().numpy().tobytes()).hexdigest()
