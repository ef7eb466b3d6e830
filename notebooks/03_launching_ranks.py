# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 3. Launching ranks, and one model for all
#
# So far `%%ranks` started the processes for you. Here you do it as a launcher does, and then give
# all ranks the same model.
#
# - **Time:** 15 minutes, and 45 more for the four exercises.
# - **You need:** [notebook 1](01_what_is_a_rank.ipynb).
# - **Reference:** [Launching ranks](../phase1/GUIDELINES.md#launching-ranks) and [Model
#   synchronisation](../phase1/GUIDELINES.md#model-synchronisation)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# ## What a launcher does
#
# On a cluster, `torchrun` or Slurm's `srun` starts the same program N times. The copies differ
# only in their environment variables. Here the notebook is the launcher, of a program with two
# lines:

# %%
import os
import subprocess
import sys

PROGRAM = """
import os
print("I am process", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""
for number in range(3):
    variables = {"RANK": str(number), "WORLD_SIZE": "3"}
    command = [sys.executable, "-S", "-c", PROGRAM]
    environ = {**os.environ, **variables}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    print(done.stdout, end="")

# %% [markdown]
# Each process needs five values: its rank, the world size, its *local rank* (its number on this
# machine, which selects a GPU), and the address and port at which all meet. The meeting is called
# the *rendezvous*.

# %%
from pictures_launching import two_machines

two_machines()

# %% [markdown]
# > **Predict.** Eight processes run on two machines with four GPUs each. What is the local rank of
# > rank 6, and to which machine do all ranks connect?
#
# <details><summary>Answer</summary>
#
# Rank 6 is the third process on the second machine, so its local rank is 2. All connect to the
# first machine. Any would do, but all must use the same one, and rank 0 usually runs on the first.
#
# </details>
#
# `run_ranks` runs a function on ranks, as `%%ranks` runs a cell. With `process_group=False` the
# function itself must start the process group, so you can watch a rendezvous. Here the ranks meet
# in a file; on a cluster they meet at the address and port.
#
# > **Predict, then run.** Rank 2 starts 0.4 seconds late. How long are the others in
# > `init_process_group`?
#
# <details><summary>Answer</summary>
#
# Also about 0.4 seconds, until rank 2 has arrived. If it never came, they would wait until the
# *timeout*. By default that is 30 minutes with gloo and 10 with nccl; this course uses 60 seconds.
#
# </details>

# %%
import tempfile
import time

import torch.distributed as dist

from gradsync import run_ranks


def meet(rank: int, world_size: int, path: str) -> float:
    """Join the process group, rank 2 later than the others; return the seconds that it takes."""
    time.sleep(0.4 if rank == 2 else 0.0)
    began = time.perf_counter()
    store = dist.FileStore(path, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return time.perf_counter() - began


with tempfile.TemporaryDirectory() as folder:
    seconds = run_ranks(meet, world_size=4, process_group=False, path=f"{folder}/meeting")
for rank, waited in enumerate(seconds):
    print(f"rank {rank} waited {waited:.1f} s")

# %% [markdown]
# > **Predict.** Suppose that `WORLD_SIZE` is missing, and each of eight processes assumes that it
# > is alone. What happens?
#
# <details><summary>Answer</summary>
#
# All eight train a complete model, and all write it to the same file, without any error. So half a
# set of variables must raise one.
#
# </details>
#
# ## Exercise: `read_rank_info`
#
# Turn a mapping of environment variables into a `RankInfo`, for torchrun, for Slurm and without a
# launcher. The table in the reference names the variables, their defaults and the errors, and how
# to read Slurm's list of hosts.
#
# Reference: [Launching ranks](../phase1/GUIDELINES.md#launching-ranks). For a hint, run `!gradsync
# hint read_rank_info` in a new cell.

# %%
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankInfo:
    """The rank, the world size, and the address at which all ranks connect. This class is given."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


# %%
def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
    """Return this process's `RankInfo`, from a launcher's environment variables."""
    raise NotImplementedError("phase1/read_rank_info")  # write this


# %%
from gradsync.notebook import check

check("read_rank_info", read_rank_info)

# %% [markdown]
# ## Exercise: `setup_distributed`
#
# Start the default process group from a `RankInfo`, and return this rank's device. Return only
# when every rank is ready: which kind of call can't return before all ranks have made it?
#
# Reference: [Launching ranks](../phase1/GUIDELINES.md#launching-ranks). For a hint, run `!gradsync
# hint setup_distributed` in a new cell.

# %%
from datetime import timedelta

import torch
import torch.distributed as dist


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    """Start the default process group; return this rank's device when all are ready."""
    raise NotImplementedError("phase1/setup_distributed")  # write this


# %%
check("setup_distributed", setup_distributed)

# %% [markdown]
# ## Exercise: `cleanup_distributed`
#
# End the process group. It is often called after something has already gone wrong, so it is
# harmless if there is no group.
#
# Reference: [Launching ranks](../phase1/GUIDELINES.md#launching-ranks). For a hint, run `!gradsync
# hint cleanup_distributed` in a new cell.


# %%
def cleanup_distributed() -> None:
    """End the default process group, if there is one."""
    raise NotImplementedError("phase1/cleanup_distributed")  # write this


# %%
check("cleanup_distributed", cleanup_distributed)

# %% [markdown]
# ## One model for all
#
# Each rank builds its model with its own random weights. Do the differences disappear in training?
# Try it with one weight on two ranks and the loss (w − 3)². In each step both use the mean of the
# two gradients.
#
# > **Predict, then run.** Rank 0 starts at 1 and rank 1 at 4. Where do they end?
#
# <details><summary>Answer</summary>
#
# At 1.5 and 4.5. Both take the same steps, so the gap stays 3. At the end the gradients are −3 and
# 3, their mean is 0, and nothing moves any more. The loss looks as if training had converged.
#
# </details>

# %%
from pictures_ring import drift

weights = [1.0, 4.0]  # of rank 0 and rank 1
history = [weights]
for _ in range(30):
    gradients = [2 * (w - 3) for w in weights]
    mean = sum(gradients) / len(gradients)
    weights = [w - 0.1 * mean for w in weights]
    history.append(weights)

drift(history, minimum=3)

# %% [markdown]
# A *broadcast* copies the tensor of one rank, the *source*, to all others. As with every
# collective, all ranks call it.
#
# > **Predict, then run.** The source is rank 2. What does each rank have afterwards?
#
# <details><summary>Answer</summary>
#
# 20 and 21, the numbers of rank 2.
#
# </details>

# %%
# %%ranks 4
import torch
import torch.distributed as dist

numbers = torch.tensor([10 * rank, 10 * rank + 1])
dist.broadcast(numbers, src=2)
numbers

# %% [markdown]
# ### What belongs to a model?
#
# Besides *parameters*, a model may have *buffers*: numbers that it stores but does not learn, such
# as BatchNorm's running mean. Here all ranks have a layer with the same parameters, and each sends
# its own batch through it.

# %%
# %%ranks 4
from torch import nn

layer = nn.BatchNorm1d(2)
layer(torch.full((8, 2), float(rank)))  # a different batch on each rank
print("parameters:", {name: value.tolist() for name, value in layer.named_parameters()})
print("buffers:", [name for name, _ in layer.named_buffers()])

# %%
# %%ranks 4
layer.running_mean

# %% [markdown]
# The parameters agree, so they are one line. The running means differ: these ranks would train
# alike and *evaluate* differently. The third buffer counts batches and is an integer.
#
# ### New values, not new tensors
#
# > **Predict, then run.** We give the model a new parameter object after the optimizer was
# > created. The gradient is 2, the learning rate 0.1. What is the weight after the step?
#
# <details><summary>Answer</summary>
#
# Still 5.0. The optimizer updates the old object, which the model does not use any more. If a
# model does not learn at all, and nothing fails, look for this.
#
# </details>

# %%
import torch
from torch import nn

model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

model.weight = nn.Parameter(torch.tensor([[5.0]]))  # a new object
model(torch.tensor([[2.0]])).sum().backward()
optimizer.step()
print("gradient:", model.weight.grad.item(), " weight after the step:", model.weight.item())

# %% [markdown]
# ## Exercise: `broadcast_model`
#
# Give every parameter and every buffer the value that it has on rank `src`. The objects, gradients
# and `requires_grad` stay.
#
# Reference: [Model synchronisation](../phase1/GUIDELINES.md#model-synchronisation). For a hint,
# run `!gradsync hint broadcast_model` in a new cell.


# %%
def broadcast_model(model: nn.Module, src: int = 0) -> None:
    """Give every parameter and every buffer the value that it has on rank `src`."""
    raise NotImplementedError("phase1/broadcast_model")  # write this


# %%
check("broadcast_model", broadcast_model)

# %% [markdown]
# ## What to remember
#
# - A launcher gives each process its number in environment variables. Half a set of them is an
#   error.
# - Ranks meet at one address and port, and setup is over when all have arrived.
# - Replicas that start differently never agree, whatever gradients they share.
# - Parameters *and* buffers belong to a model. Change their values, and keep the objects.
#
# **Next:** [4. Averaging gradients](04_averaging_gradients.ipynb)
