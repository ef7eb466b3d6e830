"""A script with three mistakes for `gradsync review`, and the command."""

import subprocess
import sys

WRONG = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dataset = TensorDataset(torch.randn(10, 2))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, sampler=sampler)  # a comment stays
model = nn.Linear(2, 1).cuda()
model.load_state_dict(torch.load(
    "model.pt",  # so does this one
))
model = DDP(model)
for epoch in range(3):
    for (x,) in loader:
        model(x).sum().backward()
dist.destroy_process_group()
"""


def run(*arguments):
    command = [sys.executable, "-m", "gradsync", "review", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)
