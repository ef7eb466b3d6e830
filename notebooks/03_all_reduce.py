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
# # 3. All-reduce, by hand and around a ring
#
# In every training step the ranks add up their gradients. The call for this is `all_reduce`.
# This notebook shows what it does, how a rank can build it from single messages, and why libraries
# send the messages around a ring.
#
# - **Afterwards you can** give all ranks the same model, and write an all-reduce in which
#   each rank sends less than two tensors.
# - **Time:** 20 minutes, and 40 more for the two exercises.
# - **You need:** notebooks [1](01_what_is_a_rank.ipynb) and [2](02_splitting_data.ipynb).

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
# ## What `all_reduce` does
#
# Rank 0 has ones, rank 1 tens, rank 2 hundreds and rank 3 thousands. So the digits of a sum show
# which ranks' numbers it contains.
#
# > **Predict, then run.** What does each rank have after `all_reduce`? What would it mean if the
# > second number were 2022?
#
# <details><summary>Answer</summary>
#
# Every rank has 1111, 2222 and 3333. The call works in place: each rank's tensor changes.
# In 2022 the hundreds are missing, so rank 2's number is not in the sum.
#
# </details>

# %%
# %%ranks 4
import torch
import torch.distributed as dist

mine = torch.tensor([1, 2, 3]) * 10**rank
print("before:", mine.tolist())
dist.all_reduce(mine)
print("after: ", mine.tolist())

# %% [markdown]
# ## The same start for all ranks: broadcast
#
# Before the first step, all ranks need the same model. Each rank builds its own, with its own
# random weights.
# Do these differences disappear during training? We try it with one weight on two ranks.
# The loss is (w − 3)², so its gradient is 2(w − 3), and the best weight is 3.
# A list of two numbers represents the two ranks. In each step both ranks use the mean of the two
# gradients.
#
# > **Predict, then run.** Rank 0 starts at 1 and rank 1 starts at 4. Where do they end?
#
# <details><summary>Answer</summary>
#
# At 1.5 and 4.5. Both ranks take the same steps, so the gap between them is always 3.
# At the end the two gradients are −3 and 3. Their mean is 0, so the weights do not change any more.
# The loss is constant, at 2.25. It looks as if training had found the minimum.
#
# </details>

# %%
from pictures_03 import drift, ring, ring_step, traffic

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
# collective, all ranks must call it.
#
# > **Predict, then run.** The source is rank 2. What does each rank have afterwards?
#
# <details><summary>Answer</summary>
#
# Every rank has 20 and 21, the numbers of rank 2. The tensor of rank 2 itself does not change.
#
# </details>

# %%
# %%ranks 4
numbers = torch.tensor([10 * rank, 10 * rank + 1])
dist.broadcast(numbers, src=2)
numbers

# %% [markdown]
# ### What belongs to a model?
#
# A model has *parameters*, which training changes. It may also have *buffers*: numbers that it
# stores, but does not learn.
# BatchNorm, for example, keeps a running mean of its inputs. It uses this mean in evaluation mode.
#
# In the next cell all ranks have a layer with the same parameters. Each rank sends its own
# batch through it.

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
# The parameters are equal, so the first output is one line. The running means differ. Ranks with
# different buffers train in the same way, but they *evaluate* differently.
# The third buffer, the number of batches, is an integer. Code that expects only floating-point
# numbers fails there.
#
# ### New values, not new tensors
#
# An optimizer refers to the parameter objects that the model had when the optimizer was created.
#
# > **Predict, then run.** We give the model a new parameter object after the optimizer was created.
# > The gradient is 2 and the learning rate is 0.1. What is the weight after the step?
#
# <details><summary>Answer</summary>
#
# Still 5.0. The optimizer updates the old object, which the model does not use any more.
# If a model does not learn at all, and there is no error, look for this mistake.
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
# Give every parameter and every buffer of the model exactly the value that it has on rank `src`,
# bit for bit.
# The parameters and buffers stay the same objects. Their gradients and `requires_grad` do not
# change.
# All ranks must make the same calls in the same order, even if one of them has frozen a layer and
# the others have not.
#
# Read [Model synchronisation](../phase1/GUIDELINES.md#model-synchronisation). For a hint, run
# `!gradsync hint broadcast_model` in a new cell.


# %%
def broadcast_model(model: nn.Module, src: int = 0) -> None:
    """Give every parameter and every buffer the value that it has on rank `src`."""
    raise NotImplementedError("phase1/broadcast_model")  # write this


# %%
from gradsync.notebook import check

check("broadcast_model", broadcast_model)

# %% [markdown]
# ## An all-reduce by hand: one rank collects
#
# How would you write `all_reduce` yourself? You can use two simpler calls: `send(tensor, r)` sends
# a tensor to rank r, and `recv(tensor, r)` receives one from rank r.
#
# The first idea: all ranks send their tensor to rank 0. Rank 0 adds them up, and sends the sum
# back.
#
# > **Predict, then run.** With four ranks, how many tensors does rank 0 send and receive? How many
# > does rank 3 send and receive?
#
# <details><summary>Answer</summary>
#
# Rank 0 receives three and sends three. Rank 3 sends one and receives one.
# With 1,000 ranks, rank 0 receives 999 tensors and sends 999, while all others wait.
#
# </details>

# %%
# %%ranks 4
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
# The sum is right, on all ranks. But all messages go through rank 0, one after the other.
#
# ## Every rank sends to the next rank
#
# A better idea is to let all ranks send at the same time. Rank 0 sends to rank 1, rank 1 to rank 2,
# and so on. The last rank sends to rank 0.
# The ranks form a *ring*.
#
# > **Predict, then run.** Every rank first sends to the next rank, and then receives from the rank
# > before. Does this work?
#
# <details><summary>Answer</summary>
#
# No. A `send` waits until the other rank receives. But all ranks are in their `send`, and none of
# them receives: a deadlock.
# For small messages, some backends return from `send` earlier, and then such code seems to work. Do
# not rely on it.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
next_rank = (rank + 1) % world_size
rank_before = (rank - 1) % world_size

arriving = torch.empty_like(mine)
dist.send(mine, next_rank)
dist.recv(arriving, rank_before)

# %% [markdown]
# With two ranks there is a simple solution: one of them receives first.

# %%
# %%ranks 2
import torch
import torch.distributed as dist

mine, arriving = torch.tensor([10 + rank]), torch.empty(1, dtype=torch.int64)
if rank == 0:
    dist.send(mine, 1)
    dist.recv(arriving, 1)
else:
    dist.recv(arriving, 0)
    dist.send(mine, 0)
print("mine:", mine.item(), " arrived:", arriving.item())

# %% [markdown]
# This does not work for every ring: with three ranks, two neighbours would both send first or both
# receive first.
# Other calls start to send or receive a message, and return before it is complete. [More
# calls](../phase2/GUIDELINES.md#more-calls) describes them.
#
# ## The ring, step by step
#
# Now the real idea. Cut the tensor into N *chunks*. In every step, each rank sends **one chunk** to
# the next rank, and receives one from the rank before.
# All ranks send at the same time, so no rank is idle.
#
# Let us follow one chunk only. Chunk 0 starts on rank 0, and travels around the ring of four ranks.
# Each rank adds its own number.

# %%
own = [1, 10, 100, 1000]  # chunk 0 on each of the four ranks at the start
chunk = own[0]
print(f"start:  at rank 0 it is {chunk:>4}")
for step, here in enumerate([1, 2, 3], start=1):
    chunk += own[here]
    print(f"step {step}: at rank {here} it is {chunk:>4}")

# %% [markdown]
# After three steps chunk 0 is complete: rank 3 has its sum. The other chunks travel in the same way
# at the same time.
# But each chunk starts on a different rank: chunk 1 on rank 1, chunk 2 on rank 2 and chunk 3 on
# rank 3.
# So after three steps each rank has one complete chunk, and no two ranks have the same one. This
# first pass is called *reduce-scatter*.
#
# In the second pass the chunks travel for three more steps. Now they are complete, so each rank
# keeps a copy instead of adding. This pass is called *all-gather*.
#
# > **Predict, then look.** On which rank is chunk 1 complete after the first pass? Which number
# > does it contain?
#
# <details><summary>Answer</summary>
#
# On rank 0: it starts on rank 1 and makes three steps, to ranks 2, 3 and 0. The number is 2222.
#
# </details>
#
# In the picture each small table is one moment. A row is a rank, from rank 0 at the top to rank 3.
# A column is a chunk.
# A thick frame marks a chunk that has just arrived. Grey numbers are complete sums.

# %%
ring(4)

# %% [markdown]
# In a running notebook you can choose the step, and the number of ranks.
# Write down for one rank which chunk it sends in each step. You need this for the exercise.

# %%
from controls import explore, slider

explore(ring_step, ranks=slider("N, ranks", 4, 2, 6), step=slider("step", 2, 0, 10))

# %% [markdown]
# ## What the ring costs
#
# Each pass has N − 1 steps. In each step a rank sends 1/N of its tensor.
#
# > **Predict, then run.** How much does one rank send with 2, 4 and 1,000 ranks? The unit is one
# > tensor.
#
# <details><summary>Answer</summary>
#
# Each rank makes 2(N − 1) steps and sends 1/N of a tensor in each, so it sends 2(N − 1)/N tensors.
# That is 1 with two ranks, 1.5 with four, and 1.998 with a thousand.
# It is always less than two tensors. If rank 0 collects instead, it sends N − 1 tensors.
#
# </details>

# %%
for ranks in [2, 4, 8, 1000]:
    around_the_ring = 2 * (ranks - 1) / ranks
    print(f"{ranks:>4} ranks: ring {around_the_ring:.3f} tensors, rank 0 collects: {ranks - 1}")

traffic([2, 3, 4, 6, 8, 12, 16])

# %% [markdown]
# The ring has a disadvantage: it needs 2(N − 1) steps, one after the other, and each step has a
# fixed cost, the *latency*.
# So the ring is good for large tensors. For small tensors with many ranks, libraries use other
# patterns. Notebook 9 measures this.
#
# ## Three details before you write it
#
# **1. The number of elements is not always a multiple of N.** Ten elements on four ranks need
# chunks of three. These have twelve places, but there are only ten elements.
# There may even be fewer elements than ranks. Decide how to fill the free places, or how large each
# chunk is.
#
# **2. The order of additions changes a sum.** Floating-point numbers are rounded after each
# addition.
# Here the exact sum is 7:

# %%
parts = [torch.tensor(value) for value in (1e8, 3.0, -1e8, 4.0)]  # one number of each rank
for first in range(4):
    order = [(first + step) % 4 for step in range(4)]
    total = parts[order[0]]
    for index in order[1:]:
        total = total + parts[index]
    print(f"added in the order {order}: {total.item()}")

# %% [markdown]
# If each rank added in its own order, the ranks would get different sums, and their models would
# slowly become different.
# On the ring each chunk is added up only *once*, and then copied. So all ranks have exactly the
# same numbers.
#
# **3. The caller's tensor must contain the result.** It may have any shape, and it may be
# transposed.
#
# > **Predict, then run.** We flatten a transposed matrix, and add 100 to the flat tensor. Does the
# > matrix change?
#
# <details><summary>Answer</summary>
#
# No. A transposed matrix is not stored row by row, so `reshape(-1)` makes a copy.
# The matrix itself is stored row by row. Then `reshape(-1)` is a view, and the matrix changes.
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
# ## Exercise: `ring_all_reduce`
#
# Replace the tensor by its sum over ranks, in place, in two passes around the ring.
# Use only messages between two ranks, and no collectives. Each rank sends 2(N − 1)/N of the tensor,
# rounded up to whole chunks.
# It must work for any shape, any N, and for fewer elements than ranks.
# When your function returns, the caller may change the tensor at once. So wait until your last
# message has been sent before you return.
#
# Read [The ring](../phase2/GUIDELINES.md#the-ring). For a hint: `!gradsync hint
# phase2/ring_all_reduce`.

# %%
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    """Replace `tensor` by its sum over ranks, in place, with messages around a ring."""
    raise NotImplementedError("phase2/ring_all_reduce")  # write this


# %%
check("phase2/ring_all_reduce", ring_all_reduce)

# %% [markdown]
# ## What to remember
#
# - `all_reduce` gives every rank the sum over all ranks. `broadcast` gives every rank the tensor of
#   one rank.
# - Ranks that start with different weights never become equal, although they use the same
#   gradients.
# - Parameters and buffers both belong to a model. Change their values, and keep the objects.
# - On the ring each rank sends 2(N − 1)/N of its tensor: less than two tensors, for any number of
#   ranks.
# - If all ranks send first and receive later, no rank receives: a deadlock.
#
# ## Next
#
# [4. Averaging gradients](04_averaging_gradients.ipynb): with the mean gradient, N ranks train
# exactly like one process.
