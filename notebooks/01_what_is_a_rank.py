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
# Distributed training runs one program in several processes. Here you run cells on four of them,
# see what each can and can't see of the others, and meet the first collective.
#
# - **Time:** 15 minutes. There is no exercise to write.
# - **You need:** Python functions, and a little PyTorch (tensors).

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# ## A rank is a process
#
# A *rank* is one of several processes that work on the same task. Their number is the *world
# size*, written N, and they are numbered from 0 to N − 1. A cell that begins with `%%ranks 4` runs
# on four ranks, where `rank` and `world_size` are defined.
#
# > **Predict, then run.** All four ranks run the same two lines. What does each of them print?
#
# <details><summary>Answer</summary>
#
# 0, 10, 20 and 30. The code is the same on every rank; only the value of `rank` differs.
#
# </details>

# %%
# %%ranks 4
x = 10 * rank
print(f"I am rank {rank} of {world_size}. x is {x}.")

# %% [markdown]
# Each rank has a label and a colour, the same throughout the course: rank 0 is blue, 1 orange, 2
# green, 3 purple. If ranks print the same, the output appears once, under a label that names them
# all:

# %%
# %%ranks 4
print(f"There are {world_size} of us.")

# %% [markdown]
# Are these really processes? The operating system gives each a different *process id*. `%ranks
# pull NAME` copies a variable from the ranks to the notebook, as a list: rank 0's value, rank 1's,
# and so on.

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
# The ranks are still running, and each still has its `x`. `--rank 2` runs a cell on rank 2 only:

# %%
# %%ranks 4 --rank 2
x = 99

# %% [markdown]
# > **Predict, then run.** What is `x` now on each rank? Does the notebook itself have an `x`?
#
# <details><summary>Answer</summary>
#
# 0, 10, 99 and 30: only rank 2 has changed its own variable. The notebook is a fifth process
# without any `x`, so the second cell raises a `NameError`.
#
# </details>

# %%
# %%ranks 4
x

# %% tags=["raises-exception"]
x

# %% [markdown]
# `%ranks push NAME` sends a variable of the notebook to each rank:

# %%
learning_rate = 0.5
# %ranks push learning_rate

# %%
# %%ranks 4
print("my learning rate:", learning_rate)

# %% [markdown]
# ## Share the work, then communicate
#
# Why several processes? Because each can do a part of the work. Here each rank adds up a quarter
# of the numbers from 0 to 999,999:

# %%
# %%ranks 4
quarter = 1_000_000 // world_size
my_sum = sum(range(rank * quarter, (rank + 1) * quarter))
my_sum

# %% [markdown]
# To get the total, the ranks must communicate. A *collective* is a call in which all ranks take
# part. `all_reduce` adds up a tensor over all ranks, element by element.
#
# > **Predict, then run.** Which ranks have the total after `all_reduce`?
#
# <details><summary>Answer</summary>
#
# All of them, hence "all" in the name. The tensor that you pass is the one that changes: the call
# works in place.
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
# Now rank 3 sleeps for 0.3 seconds first. `--timeline` draws what each rank did. `barrier`, a
# collective that only waits, makes all ranks start together.
#
# > **Predict, then run.** How long do ranks 0, 1 and 2 spend in `all_reduce`?
#
# <details><summary>Answer</summary>
#
# About 0.3 seconds. They can't have the sum before rank 3 has sent its part, so all ranks are as
# slow as the slowest.
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
# And if a rank never calls the collective? An ordinary program would hang for many minutes without
# a message, in a *deadlock*. Here the cell ends at once, and the message names the ranks that
# wait, their line, and the rank that is missing. This cell fails on purpose:

# %% tags=["raises-exception"]
# %%ranks 4
if rank != 3:
    dist.all_reduce(total)

# %% [markdown]
# The ranks are still running, and still have all their variables:

# %%
# %%ranks 4
print("x is", x, "and the sum of my quarter is", my_sum)

# %%
# %ranks status

# %%
# %ranks reset

# %% [markdown]
# `%ranks reset`, the last of these cells, ends the ranks. Otherwise they end with the notebook.
#
# ## What to remember
#
# - A rank is a process with its own memory. All ranks run the same code, and only the value of
#   `rank` differs.
# - A collective returns when all ranks have called it. **Every rank must call every collective.**
#
# **Next:** [2. Splitting data](02_splitting_data.ipynb)
