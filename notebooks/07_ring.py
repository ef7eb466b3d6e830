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
# # 7. All-reduce around a ring
#
# How would you write `all_reduce` yourself, from messages between two ranks? And how do libraries
# keep one rank from carrying all the bytes?
#
# - **Time:** 15 minutes, and 30 more for the exercise.
# - **You need:** collectives ([notebook 1](01_what_is_a_rank.ipynb)), and the circle of sends of
#   [notebook 5](05_deadlocks.ipynb).
# - **Reference:** [The ring](../phase2/GUIDELINES.md#the-ring)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# ## One rank collects
#
# `send(tensor, r)` sends a tensor to rank r, and `recv(tensor, r)` receives one from it. The first
# idea: all send to rank 0, which adds up and sends the sum back. Rank 0 has ones, rank 1 tens,
# rank 2 hundreds and rank 3 thousands, so the digits of a sum show whose numbers it contains.
#
# > **Predict, then run.** With four ranks, how many tensors does rank 0 send and receive? How many
# > does rank 3?
#
# <details><summary>Answer</summary>
#
# Rank 0 receives three and sends three; rank 3 sends one and receives one. With 1,000 ranks, rank
# 0 handles 1,998 tensors while all others wait.
#
# </details>

# %%
# %%ranks 4
import torch
import torch.distributed as dist

mine = torch.tensor([1, 2, 3]) * 10**rank
if rank == 0:
    for other in range(1, world_size):
        theirs = torch.empty_like(mine)
        dist.recv(theirs, other)
        mine += theirs
    for other in range(1, world_size):
        dist.send(mine, other)
else:
    dist.send(mine, 0)
    dist.recv(mine, 0)
mine

# %% [markdown]
# ## The ring, step by step
#
# A better idea lets all ranks send at the same time, each to the next one; the last sends to rank
# 0. Cut the tensor into N *chunks*. In every step each rank sends **one chunk** to the next rank
# and receives one from the rank before. Follow chunk 0, to which each rank adds its own number:

# %%
own = [1, 10, 100, 1000]  # chunk 0 on each of the four ranks at the start
chunk = own[0]
print(f"start:  at rank 0 it is {chunk:>4}")
for step, here in enumerate([1, 2, 3], start=1):
    chunk += own[here]
    print(f"step {step}: at rank {here} it is {chunk:>4}")

# %% [markdown]
# After three steps chunk 0 is complete, on rank 3. The other chunks travel in the same way at the
# same time, but chunk 1 starts on rank 1, and so on. So after three steps each rank has one
# complete chunk, a different one on each. This pass is called *reduce-scatter*. In the second
# pass, *all-gather*, the complete chunks travel for three more steps, and each rank keeps a copy.
#
# > **Predict.** On which rank is chunk 1 complete after the first pass? Which number does it
# > contain?
#
# <details><summary>Answer</summary>
#
# On rank 0: it starts on rank 1 and makes three steps, to ranks 2, 3 and 0. The number is 2222.
#
# </details>
#
# Each small table is one moment: a row is a rank, a column a chunk. A thick frame marks a chunk
# that has just arrived. Grey numbers are complete sums.

# %%
import torch
from pictures_ring import ring, ring_step, traffic

ring(4)

# %% [markdown]
# In a running notebook you can choose the step. Write down for one rank which chunk it sends in
# each step; you need it for the exercise.

# %%
from controls import explore, slider

explore(ring_step, ranks=slider("N, ranks", 4, 2, 6), step=slider("step", 2, 0, 10))

# %% [markdown]
# ## What the ring costs
#
# > **Predict, then run.** How much does one rank send with 2, 4 and 1,000 ranks, in tensors?
#
# <details><summary>Answer</summary>
#
# 2(N − 1) steps of 1/N of a tensor make 2(N − 1)/N: 1, 1.5 and 1.998. It is always less than two.
#
# </details>

# %%
for ranks in [2, 4, 8, 1000]:
    around_the_ring = 2 * (ranks - 1) / ranks
    print(f"{ranks:>4} ranks: ring {around_the_ring:.3f} tensors, rank 0 collects: {ranks - 1}")

traffic([2, 3, 4, 6, 8, 12, 16])

# %% [markdown]
# The price is 2(N − 1) steps one after another, each with a fixed cost, the *latency*. Notebook 12
# measures it.
#
# ## Three details before you write it
#
# **1. The order of additions changes a sum.** The exact sum is 7, and each addition rounds:

# %%
parts = [torch.tensor(value) for value in (1e8, 3.0, -1e8, 4.0)]  # one number of each rank
for first in range(4):
    order = [(first + step) % 4 for step in range(4)]
    total = parts[order[0]]
    for index in order[1:]:
        total = total + parts[index]
    print(f"added in the order {order}: {total.item()}")

# %% [markdown]
# If each rank added in its own order, the replicas would diverge. On the ring each chunk is added
# up *once* and then copied.
#
# **2. The caller's tensor must contain the result**, whatever its shape.
#
# > **Predict, then run.** We flatten a transposed matrix and add 100 to the flat tensor. Does the
# > matrix change?
#
# <details><summary>Answer</summary>
#
# No. A transposed matrix is not stored row by row, so `reshape(-1)` copies it. For the matrix
# itself it is a view.
#
# </details>

# %%
matrix = torch.arange(6).reshape(2, 3)
transposed = torch.arange(6).reshape(2, 3).t()
for name, tensor in [("matrix", matrix), ("transposed", transposed)]:
    flat = tensor.reshape(-1)
    flat += 100
    print(f"{name:10} changed: {bool((tensor >= 100).all())}")

# %% [markdown]
# **3. All ranks must not send first.** You saw in notebook 5 that a circle of sends is a deadlock,
# and one way out. Calls that return before the message has arrived are another: see [More
# calls](../phase2/GUIDELINES.md#more-calls). With `isend` the call returns at once, and `wait`
# returns when the message has been delivered:

# %%
# %%ranks 2
import torch
import torch.distributed as dist

mine, arriving = torch.tensor([10 + rank]), torch.empty(1, dtype=torch.int64)
handle = dist.isend(mine, 1 - rank)  # both ranks send first
dist.recv(arriving, 1 - rank)
handle.wait()  # from here on, `mine` may change
print("mine:", mine.item(), " arrived:", arriving.item())

# %% [markdown]
# ## Exercise: `ring_all_reduce`
#
# Replace the tensor by its sum over ranks, in place, in two passes around the ring, with messages
# between two ranks only. Any shape, any N, and any size: ten elements on four ranks need chunks of
# three, and there may be fewer elements than ranks.
#
# Reference: [The ring](../phase2/GUIDELINES.md#the-ring). For a hint, run `!gradsync hint
# phase2/ring_all_reduce` in a new cell.

# %%
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    """Replace `tensor` by its sum over ranks, in place, with messages around a ring."""
    raise NotImplementedError("phase2/ring_all_reduce")  # write this


# %%
from gradsync.notebook import check

check("phase2/ring_all_reduce", ring_all_reduce)

# %% [markdown]
# ## What to remember
#
# - On the ring each rank sends 2(N − 1)/N of its tensor, less than two, for any number of ranks.
# - Each sum is computed once and then copied, so all ranks have the same bits.
# - If all ranks send first and receive later, none receives.
#
# **Next:** [8. Buckets and overlap](08_buckets_and_overlap.ipynb)
