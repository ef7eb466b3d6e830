"""Loops that all ranks leave together, in the ways that are common in scripts."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MAX_STEPS = 500


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad, self.stop = patience, float("inf"), 0, False

    def step(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            self.stop = self.bad >= self.patience


def average_over_ranks(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def local_loss(model, loader, criterion):
    totals = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in loader:
            totals[0] += criterion(model(inputs), targets) * len(targets)
            totals[1] += len(targets)
    return totals


def on_the_whole_set(model, loader, criterion):
    with torch.no_grad():
        return sum(criterion(model(x), y).item() * len(y) for x, y in loader)


def main():
    dist.init_process_group("gloo")
    train_set = TensorDataset(torch.randn(1000, 10), torch.randint(0, 2, (1000,)))
    val_set = TensorDataset(torch.randn(100, 10), torch.randint(0, 2, (100,)))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    val_loader = DataLoader(val_set, batch_size=32, sampler=val_sampler)
    whole_loader = DataLoader(val_set, batch_size=32)
    model = DDP(nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    stopping, steps, best = EarlyStopping(3), 0, float("inf")
    for epoch in range(30):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if steps >= MAX_STEPS or number >= len(loader) - 2 or not torch.isfinite(norm):
                break
            if loss.item() > 100:
                raise RuntimeError("the loss has exploded")
            flag = torch.tensor(float(loss.item() < 0.01))
            dist.all_reduce(flag, op=dist.ReduceOp.MIN)
            if flag:
                break
        totals = local_loss(model, val_loader, criterion)
        for tensor in (totals, loss.detach()):
            dist.all_reduce(tensor)
        stopping.step((totals[0] / totals[1]).item())
        if stopping.stop:
            break
        totals = local_loss(model, val_loader, criterion)
        average_over_ranks(totals)
        if totals[0] > 10:
            return
        worst = [None] * dist.get_world_size()
        dist.all_gather_object(worst, local_loss(model, val_loader, criterion)[0].item())
        if max(worst) < 1e-3:
            break
        stop = [local_loss(model, val_loader, criterion)[0].item() < 1e-3]
        dist.broadcast_object_list(stop, src=0)
        if stop[0]:
            break
        same = on_the_whole_set(model.module, whole_loader, criterion)
        if same > best:
            break
        best = same
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
