"""Averages by functional collectives, all under way together."""

import torch.distributed._functional_collectives as funcol


def average_gradients(model):
    params = [param for param in model.parameters() if param.requires_grad]
    for param in params:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    means = [funcol.all_reduce(param.grad, "avg", dist.group.WORLD) for param in params]
    for param, mean in zip(params, means):
        param.grad = funcol.wait_tensor(mean)
