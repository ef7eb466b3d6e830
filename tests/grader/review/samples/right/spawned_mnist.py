"""Two processes that the script starts itself, on a free port."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 32, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(5408, 10)

    def forward(self, x):
        x = self.dropout(F.max_pool2d(F.relu(self.conv(x)), 2))
        return F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def train(model, loader, optimizer, epoch, rank):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0 and rank == 0:
            print(f"epoch {epoch} [{batch_idx}/{len(loader)}] loss {loss.item():.4f}")


def test(model, loader):
    model.eval()
    totals = torch.zeros(2)
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            totals[0] += output.argmax(dim=1).eq(target).sum().item()
            totals[1] += len(data)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def worker(rank, world_size, port, args):
    setup(rank, world_size, port)
    transform = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    )
    train_set = datasets.MNIST(args.data, train=True, transform=transform)
    test_set = datasets.MNIST(args.data, train=False, transform=transform)
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank, shuffle=True)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=1000, sampler=DistributedSampler(test_set))
    torch.manual_seed(args.seed)
    model = DDP(Net())
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(model, train_loader, optimizer, epoch, rank)
        accuracy = test(model, test_loader)
        if rank == 0:
            print(f"accuracy {accuracy:.2%}")
        scheduler.step()
    if args.save_model and rank == 0:
        torch.save(model.module.state_dict(), "mnist_cnn.pt")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="data")
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    datasets.MNIST(args.data, download=True)
    world_size = 2
    mp.spawn(worker, args=(world_size, free_port(), args), nprocs=world_size, join=True)


if __name__ == "__main__":
    main()
