"""Mistakes that change results, hang or damage files, in other forms than on the rules' pages."""

import pytest

from gradsync.review import review_text

START = """
import os, random, shutil, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

data = TensorDataset(torch.ones(8, 2))
"""
BEGIN = """
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
"""
END = "\ndist.destroy_process_group()\n"
MODEL = "model = DistributedDataParallel(nn.Linear(2, 1).cuda())\n"
STEP = "model(torch.ones(1, 2)).sum().backward()\n"

MISTAKES = {
    "a model of another library that is called without its wrapper": (
        "DDP027",
        BEGIN
        + """
import timm
net = timm.create_model("vit_tiny").cuda()
wrapped = DistributedDataParallel(net)
for (x,) in DataLoader(data, sampler=DistributedSampler(data)):
    net(x).sum().backward()
""",
    ),
    "gradients that a class never averages": (
        "DDP034",
        """
class Trainer:
    def __init__(self):
        self.model = nn.Linear(2, 1).cuda()
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, sampler=self.sampler)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def run(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                self.model(x.cuda()).mean().backward()
                self.optimizer.step()
"""
        + BEGIN
        + "Trainer().run(3)\n",
    ),
    "a split by scikit-learn": (
        "DDP035",
        BEGIN
        + MODEL
        + """
from sklearn.model_selection import train_test_split
first, second = train_test_split(list(range(100)), test_size=0.2)
"""
        + STEP,
    ),
    "hand-written batches that ignore the rank": (
        "DDP002",
        """
class Batches:
    def __init__(self, tokens, size):
        self.tokens, self.size, self.at = tokens, size, 0

    def next_batch(self):
        found = self.tokens[self.at : self.at + self.size]
        self.at += self.size
        return found
"""
        + BEGIN
        + MODEL
        + """
batches = Batches(torch.ones(1000, 2), 8)
for step in range(10):
    model(batches.next_batch().cuda()).sum().backward()
""",
    ),
    "a sum that only one rank has": (
        "DDP015",
        BEGIN
        + """
total = torch.ones(1).cuda()
dist.reduce(total, dst=0)
if total.item() > 3:
    dist.barrier()
""",
    ),
    "a backward pass on one rank": (
        "DDP015",
        BEGIN + MODEL + "if dist.get_rank() == 0:\n    " + STEP,
    ),
    "a wrapper on one rank": (
        "DDP015",
        BEGIN + "model = nn.Linear(2, 1).cuda()\nif dist.get_rank() == 0:\n    " + MODEL,
    ),
    "a sharded checkpoint on one rank": (
        "DDP015",
        BEGIN
        + """
from torch.distributed import checkpoint
if dist.get_rank() == 0:
    checkpoint.save({"step": 1}, checkpoint_id="folder")
""",
    ),
    "a loop count that only one rank reads": (
        "DDP015",
        BEGIN
        + """
first = 0
if dist.get_rank() == 0:
    first = torch.load("last.pt", map_location="cpu")["epoch"]
for epoch in range(first, 10):
    dist.barrier()
""",
    ),
    "a group of other ranks on each rank": (
        "DDP015",
        BEGIN + "low = dist.get_rank() // 2 * 2\npair = dist.new_group([low, low + 1])\n",
    ),
    "a batch that is skipped without memory": (
        "DDP017",
        BEGIN
        + MODEL
        + """
for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
    try:
        model(x).sum().backward()
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        continue
""",
    ),
    "a flag that one rank sets to stop": (
        "DDP016",
        BEGIN
        + MODEL
        + """
for epoch in range(10):
    stop = False
    for (x,) in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        model(x).sum().backward()
    if dist.get_rank() == 0 and os.path.exists("stop"):
        stop = True
    if stop:
        break
""",
    ),
    "the number of a GPU in a node": (
        "DDP036",
        """
class Trainer:
    def __init__(self):
        dist.init_process_group("nccl")
        self.rank = dist.get_rank()
        torch.cuda.set_device(self.rank)
        self.model = DistributedDataParallel(nn.Linear(2, 1).cuda())
        self.model(torch.ones(1, 2)).sum().backward()

Trainer()
""",
    ),
    "a sampler of the ranks of a machine": (
        "DDP007",
        BEGIN
        + MODEL
        + """
local = int(os.environ["LOCAL_RANK"])
sampler = DistributedSampler(data, torch.cuda.device_count(), local, shuffle=False)
for (x,) in DataLoader(data, sampler=sampler):
    model(x).sum().backward()
""",
    ),
    "an endless generator of batches": (
        "DDP005",
        """
def forever(loader):
    while True:
        yield from_first(loader)
        for batch in loader:
            yield batch

def from_first(loader):
    return next(iter(loader))
"""
        + BEGIN
        + MODEL
        + """
batches = forever(DataLoader(data, sampler=DistributedSampler(data)))
for step in range(1000):
    (x,) = next(batches)
    model(x).sum().backward()
""",
    ),
    "an accuracy of one share that chooses the checkpoint": (
        "DDP040",
        """
def accuracy(model, loader):
    model.eval()
    good, seen = 0, 0
    with torch.inference_mode():
        for (x,) in loader:
            good += (model(x.cuda()) > 0).sum().item()
            seen += x.size(0)
    return good / seen
"""
        + BEGIN
        + MODEL
        + STEP
        + """
best = 0.0
now = accuracy(model, DataLoader(data, sampler=DistributedSampler(data, shuffle=False)))
if dist.get_rank() == 0 and now > best:
    torch.save(model.module.state_dict(), "best.pt")
""",
    ),
    "a download with names of a star import": (
        "DDP010",
        "from torchvision.datasets import *\n"
        + BEGIN
        + MODEL
        + "images = CIFAR100('data', train=True, download=True)\n"
        + STEP,
    ),
    "a file that all ranks open to write": (
        "DDP009",
        BEGIN + MODEL + STEP + "with open('log.txt', mode='w') as log:\n    log.write('done')\n",
    ),
    "a folder that all ranks make after a check": (
        "DDP037",
        BEGIN + MODEL + "if not os.path.isdir('out'):\n    os.makedirs('out')\n" + STEP,
    ),
    "a folder that all ranks delete": (
        "DDP037",
        BEGIN + MODEL + "shutil.rmtree('out', ignore_errors=True)\n" + STEP,
    ),
    "gradients that are clipped before they are unscaled": (
        "DDP038",
        BEGIN
        + MODEL
        + """
scaler = torch.cuda.amp.GradScaler()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler.scale(model(torch.ones(1, 2)).sum()).backward()
torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
    ),
    "the forward method of a sharded model": (
        "DDP039",
        BEGIN
        + """
from torch.distributed.fsdp import fully_shard
model = nn.Linear(2, 1).cuda()
fully_shard(model)
model.forward(torch.ones(1, 2)).sum().backward()
""",
    ),
    "a rank in the environment of all processes": (
        "DDP020",
        "os.environ['RANK'] = '0'\nos.environ['WORLD_SIZE'] = '4'\n" + BEGIN + MODEL + STEP,
    ),
    "a port for processes that the script starts": (
        "DDP021",
        """
def work(number, many):
    dist.init_process_group("nccl", rank=number, world_size=many)
    torch.cuda.set_device(number)
    model = DistributedDataParallel(nn.Linear(2, 1).cuda())
    model(torch.ones(1, 2)).sum().backward()
    dist.destroy_process_group()

if __name__ == "__main__":
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    torch.multiprocessing.spawn(work, args=(2,), nprocs=2)
""",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_found_and_nothing_else(kind):
    code, body = MISTAKES[kind]

    found = review_text(START + body + END, "script.py").findings

    assert [f.code for f in found] == [code]


def test_a_port_that_the_script_gives_its_own_processes_overrides_no_launcher():
    _, body = MISTAKES["a port for processes that the script starts"]

    (found,) = review_text(START + body, "script.py").findings

    assert "launcher" not in found.reason
