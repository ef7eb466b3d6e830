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
# # 1. What a rank is
#
# Distributed training runs one program in several processes at the same time.
# This notebook shows which variables such a process can read, which it cannot read, and how the
# processes find each other.
#
# - **Afterwards you can** run a cell on several ranks, explain which variables a rank can read, and
#   start a process group.
# - **Time:** 15 minutes, and 15 more for the three exercises.
# - **You need:** Python functions, environment variables, and a little PyTorch (tensors).

# %% [markdown]
# On a hosted service this cell installs the course. If gradsync is already installed, the cell does
# nothing.

# %%
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %%
# %load_ext gradsync

# %% [markdown]
# ## A rank is a process
#
# A *process* is a running program with its own memory.
# A *rank* is one of several processes that work on the same task.
# Their number is the *world size*, written N. The ranks are numbered from 0 to N − 1.
#
# A cell that begins with `%%ranks 4` runs on four ranks. Two variables are defined there: `rank`
# and `world_size`.
#
# > **Predict, then run.** All four ranks run the same two lines. What does each of them print?
#
# <details><summary>Answer</summary>
#
# Each rank prints its own value: 0, 10, 20 and 30.
# The code is the same on every rank. Only the value of `rank` differs.
#
# </details>

# %%
# %%ranks 4
x = 10 * rank
print(f"I am rank {rank} of {world_size}. x is {x}.")

# %% [markdown]
# Each rank has a label and a colour. They are the same throughout the course: rank 0 is blue, rank
# 1 orange, rank 2 green and rank 3 purple.
# If several ranks print the same output, it appears once, and the label names all of these ranks:

# %%
# %%ranks 4
print(f"There are {world_size} of us.")

# %% [markdown]
# Are these really processes, or only four variables in this notebook?
# The operating system gives each process a different number, the *process id*. We count the
# different numbers.
# `%ranks pull NAME` copies a variable from the ranks to the notebook, as a list: first rank 0's
# value, then rank 1's, and so on.

# %%
# %%ranks 4
import os

process_id = os.getpid()

# %%
import os

# %ranks pull process_id
print("different processes:", len(set(process_id)))
print("is one of them the notebook's own process?", os.getpid() in process_id)

# %% [markdown]
# ## No rank sees another rank's variables
#
# The ranks are still running, and each still has its `x`. Now only rank 2 changes its `x`. The
# option `--rank 2` runs a cell on rank 2 only.

# %%
# %%ranks 4 --rank 2
x = 99

# %% [markdown]
# > **Predict, then run.** What is `x` now on rank 0, 1, 2 and 3? Does the notebook itself have an
# > `x`?
#
# <details><summary>Answer</summary>
#
# 0, 10, 99 and 30. Only rank 2 has changed its own variable.
# The notebook is a fifth process and has no `x` at all, so the second cell below raises a
# `NameError`.
#
# </details>

# %%
# %%ranks 4
x

# %% tags=["raises-exception"]
x

# %% [markdown]
# If all ranks should have the same value, one process must send it to the others.
# `%ranks push NAME` sends a variable of the notebook to each rank:

# %%
learning_rate = 0.5
# %ranks push learning_rate

# %%
# %%ranks 4
print("my learning rate:", learning_rate)

# %% [markdown]
# ## Ranks share the work, then communicate
#
# Why use four processes that do not see each other's variables? Because each can do a quarter of
# the work.
# Here the ranks add up the numbers from 0 to 999,999. Rank 0 takes the first quarter, rank 1 the
# second, and so on.

# %%
# %%ranks 4
quarter = 1_000_000 // world_size
my_sum = sum(range(rank * quarter, (rank + 1) * quarter))
my_sum

# %% [markdown]
# No rank has the total yet. To get it, the ranks must communicate.
# A *collective* is a call in which all ranks take part. `all_reduce` is one: it adds up a tensor
# over all ranks, element by element.
#
# > **Predict, then run.** Which ranks have the total after `all_reduce`?
#
# <details><summary>Answer</summary>
#
# All of them. This is the meaning of "all" in the name. All ranks print the same, so the output is
# one line.
# The tensor that you pass is the tensor that changes: the call works in place.
#
# </details>

# %%
# %%ranks 4
import torch
import torch.distributed as dist

total = torch.tensor(my_sum)
dist.all_reduce(total)
print("total:", total.item(), " expected:", 999_999 * 1_000_000 // 2)

# %% [markdown]
# ## A collective waits for all ranks
#
# Now rank 3 sleeps for 0.3 seconds before it calls `all_reduce`. The option `--timeline` draws what
# each rank did. The `barrier` makes all ranks start together: it is a collective that only waits.
#
# > **Predict, then run.** How long do ranks 0, 1 and 2 spend in `all_reduce`?
#
# <details><summary>Answer</summary>
#
# About 0.3 seconds. They cannot have the sum before rank 3 has sent its part.
# All ranks are as slow as the slowest one.
#
# </details>

# %%
# %%ranks 4 --timeline
import time

dist.barrier()
if rank == 3:
    time.sleep(0.3)
dist.all_reduce(total)

# %% [markdown]
# What happens if a rank never calls the collective? In an ordinary program the other ranks then
# wait for many minutes, without a message.
# This is a *deadlock*. Here the cell ends at once. The message names the ranks that wait, the line
# in which they wait, and the rank that is missing.
# The next cell fails on purpose.

# %% tags=["raises-exception"]
# %%ranks 4
if rank != 3:
    dist.all_reduce(total)

# %% [markdown]
# No variable is lost. The ranks are still running, and still have all their variables:

# %%
# %%ranks 4
print("x is", x, "and the sum of my quarter is", my_sum)

# %% [markdown]
# `%ranks status` lists the ranks and the names of their variables.

# %%
# %ranks status

# %% [markdown]
# Notebook 5 shows more deadlocks and how to fix them. For now, remember: **every rank must call
# every collective.**

# %% [markdown]
# ## How the processes find each other
#
# `%%ranks` started the processes for you. On a cluster a *launcher* does this, such as `torchrun`
# or Slurm's `srun`.
# It starts the same program N times. The copies differ in one thing only: their environment
# variables.
# These contain the number of the process, and the address and port at which all processes meet.
# The meeting is called the *rendezvous*.
#
# Here is a launcher and a rendezvous in plain Python, without PyTorch. Each process connects to a
# port, sends its number, and waits for the answer.
# The host answers only when all processes have connected.

# %%
import os
import socket
import subprocess
import sys
import time

PROGRAM = """
import os, socket, time
time.sleep(float(os.environ["START_UP"]))                # some processes take longer to start
with socket.create_connection(("127.0.0.1", int(os.environ["MEET_AT"]))) as line:
    line.sendall(os.environ["MY_NUMBER"].encode())       # "I am process 2"
    line.recv(2)                                         # returns when the host answers
"""


def launch(start_up: list[float], expected: int, timeout: float = 5.0) -> list[float]:
    """Start one process for each start-up time; return the seconds until each one connected."""
    host = socket.create_server(("127.0.0.1", 0))  # port 0: any port that is free
    host.settimeout(timeout)
    began = time.monotonic()
    port = host.getsockname()[1]
    processes = []
    for number, seconds in enumerate(start_up):
        settings = {"MY_NUMBER": str(number), "MEET_AT": str(port), "START_UP": str(seconds)}
        command = [sys.executable, "-S", "-c", PROGRAM]
        processes.append(subprocess.Popen(command, env={**os.environ, **settings}))

    connected, lines = {}, []
    try:
        while len(lines) < expected:
            line, _ = host.accept()
            connected[int(line.recv(8))] = time.monotonic() - began
            lines.append(line)
    except TimeoutError:
        print(f"After {timeout} s only {len(lines)} of {expected} processes have connected.")
    for line in lines:
        line.sendall(b"go")
        line.close()
    host.close()
    for process in processes:
        process.wait()
    return [connected[number] for number in sorted(connected)]


# %% [markdown]
# > **Predict, then run.** Process 0 needs 0.2 s to start, process 1 0.5 s, process 2 0.0 s and
# > process 3 0.9 s.
# > Process 2 connects first. When can it continue?
#
# <details><summary>Answer</summary>
#
# After about 0.9 s, when process 3 has connected. (Python itself needs a little time to start,
# too.) All four continue at the same moment.
#
# </details>

# %%
from pictures_01 import two_machines, waiting

connected = launch([0.2, 0.5, 0.0, 0.9], expected=4)
waiting(connected)

# %% [markdown]
# When all have connected, they are a *process group*. From then on they can use collectives.
#
# What happens if the fourth process never starts? The host cannot distinguish a slow process from a
# dead one. It can only stop waiting after some time.
# This time is called the *timeout*. PyTorch's default is 30 minutes, this course uses 60 seconds,
# and here it is one second:

# %%
_ = launch([0.0, 0.1, 0.2], expected=4, timeout=1.0)
# %% [markdown]
# ## The five values that a process needs
#
# A process needs only five values. On a machine with several GPUs, the *local rank* is the number
# of the GPU that the process uses.

# %%
two_machines()

# %% [markdown]
# > **Predict.** Eight processes run on two machines with four GPUs each. What is the local rank of
# > rank 6, and to which machine do all ranks connect?
#
# <details><summary>Answer</summary>
#
# Rank 6 is the third process on the second machine, so its local rank is 2.
# All ranks connect to the first machine. Any machine would work, but all ranks must use the same
# one, and rank 0 usually runs on the first machine.
#
# </details>
#
# The two launchers use different names for the same things:
#
# | what | torchrun | Slurm | if it is not set |
# |---|---|---|---|
# | my rank | `RANK` | `SLURM_PROCID` | |
# | world size N | `WORLD_SIZE` | `SLURM_NTASKS` | |
# | my number on this machine | `LOCAL_RANK` | `SLURM_LOCALID` | 0 |
# | address of the rendezvous | `MASTER_ADDR` | `MASTER_ADDR`, else see below | `127.0.0.1` |
# | port of the rendezvous | `MASTER_PORT` | `MASTER_PORT` | 29500 |
#
# Slurm itself does not set `MASTER_ADDR`, but a job script may set it. If it is not set,
# use the first host of `SLURM_JOB_NODELIST`, the list of the job's machines.
#
# Why is an incomplete set of variables worse than no variables? Suppose that `WORLD_SIZE` is
# missing, and that each of eight processes assumes a world size of 1.
# All eight train a complete model, and all eight write it to the same file. There is no error
# message. So an incomplete set must raise an error.

# %% [markdown]
# ## Exercise: `read_rank_info`
#
# Write a function that turns a mapping of environment variables into a `RankInfo`.
# Use torchrun's variables if they are set, otherwise Slurm's. If neither launcher's variables are
# set, this is a single process: rank 0 of 1.
# Raise a `ValueError` that names the variable if a set is incomplete, if a value is not an integer,
# or if the rank is not between 0 and N − 1.
# Slurm shortens its list of hosts: `gpu[03-05,09],big1` means gpu03, gpu04, gpu05, gpu09 and big1.
# You need only the first name.
#
# Read [Launching ranks](../phase1/GUIDELINES.md#launching-ranks). For a hint, run `!gradsync hint
# read_rank_info` in a new cell.

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
# Start the default process group from a `RankInfo`, and return the device on which this rank
# computes: GPU number `local_rank` if there are GPUs, otherwise the CPU.
# Use only the values in `info`. Do not rely on environment variables: Slurm does not set the
# variables of torchrun. `backend` names the library that sends the messages. `None` means nccl if
# there are GPUs, otherwise gloo.
# The function must return only when every rank is ready. Think of the timeline above: which kind of
# call cannot return before all ranks have called it?
#
# Read [Starting the group](../phase1/GUIDELINES.md#starting-the-group). For a hint: `!gradsync hint
# setup_distributed`.

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
# End the process group. A program often calls this function after something has gone wrong.
# So it must also be harmless if there is no group, or if it is called twice.
#
# Read the end of [Starting the group](../phase1/GUIDELINES.md#starting-the-group). For a hint:
# `!gradsync hint cleanup_distributed`.


# %%
def cleanup_distributed() -> None:
    """End the default process group, if there is one."""
    raise NotImplementedError("phase1/cleanup_distributed")  # write this


# %%
check("cleanup_distributed", cleanup_distributed)

# %% [markdown]
# When a check passes, you can copy your function to `phase1/template_trainer.py`. `gradsync check`
# then tests it there.
#
# ## Before you leave
#
# The ranks end when you close the notebook. You can also end them yourself:

# %%
# %ranks reset

# %% [markdown]
# ## What to remember
#
# - A rank is a process with its own memory. No rank sees another rank's variables.
# - All ranks run the same code. Only the value of `rank` differs.
# - A collective is a call in which all ranks take part. It returns when all of them have called it.
# - Ranks meet at one address and port. The launcher gives each process its number in environment
#   variables.
# - An incomplete set of these variables must raise an error. Without it, N processes would work
#   alone, without an error message.
#
# ## Next
#
# [2. Splitting data](02_splitting_data.ipynb): which rank gets which sample, and why all ranks need
# the same number of samples.
