"""Accuracies of batches, averaged on each rank and then over the ranks."""

# expect: DDP031

import torch
import torch.distributed as dist


@torch.no_grad()
def evaluate(model, loader):
    accuracies = []
    for inputs, targets in loader:
        accuracies.append((model(inputs).argmax(1) == targets).float().mean())
    accuracy = torch.stack(accuracies).mean()
    dist.all_reduce(accuracy)  # here
    return (accuracy / dist.get_world_size()).item()


def main(model, dataset):
    dist.init_process_group("gloo")
    print(evaluate(model, torch.utils.data.DataLoader(dataset, batch_size=64)))
    dist.destroy_process_group()
