"""Gradients are averaged without a wrapper, and each rank selects its own share of the data."""

import os
from math import ceil
from random import Random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.multiprocessing import Process
from torchvision import datasets, transforms


class Partition:
    def __init__(self, data, index):
        self.data = data
        self.index = index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, index):
        return self.data[self.index[index]]


class DataPartitioner:
    def __init__(self, data, sizes, seed=1234):
        self.data = data
        self.partitions = []
        indexes = list(range(len(data)))
        Random(seed).shuffle(indexes)
        for fraction in sizes:
            length = int(fraction * len(data))
            self.partitions.append(indexes[:length])
            indexes = indexes[length:]

    def use(self, partition):
        return Partition(self.data, self.partitions[partition])


def partition_dataset():
    dataset = datasets.MNIST("data", train=True, transform=transforms.ToTensor())
    size = dist.get_world_size()
    batch = 128 // size
    partition = DataPartitioner(dataset, [1.0 / size for _ in range(size)]).use(dist.get_rank())
    return torch.utils.data.DataLoader(partition, batch_size=batch, shuffle=True), batch


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def run(rank, size):
    torch.manual_seed(1234)
    train_set, batch = partition_dataset()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    num_batches = ceil(len(train_set.dataset) / float(batch))
    for epoch in range(10):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print("Rank ", dist.get_rank(), ", epoch ", epoch, ": ", epoch_loss / num_batches)


def init_process(rank, size, fn, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
    )
    fn(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    size = 2
    processes = []
    datasets.MNIST("data", download=True)
    for rank in range(size):
        p = Process(target=init_process, args=(rank, size, run, os.getcwd()))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
