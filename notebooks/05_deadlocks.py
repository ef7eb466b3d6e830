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
# # 5. Deadlocks
#
# A *deadlock* is a wait that can never end: a rank waits for a call that another rank will never
# make. The program does not crash and prints nothing. It just stops. Here you make five deadlocks
# on purpose, each of another kind. You read their explanations and fix them.
#
# - **After it you can** read a deadlock's explanation, find the line to change, and see a deadlock
#   in code before it runs.
# - **Time:** 20 minutes, and as much again for the two exercises.
# - **You need:** collectives (notebooks [1](01_what_is_a_rank.ipynb) and [3](03_all_reduce.ipynb)).

# %% [markdown]
# On a hosted service this cell installs the course that this notebook belongs to; elsewhere it does
# nothing.

# %%
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %%
# %load_ext gradsync

# %%
import pickle
import tempfile
from pathlib import Path

import pictures_05
from torch import nn

from gradsync.notebook import check

folder = tempfile.mkdtemp()  # for the files of the last part

# %% [markdown]
# Four ranks will live through all of this notebook. Each keeps a list, `survived`. It gets an entry
# *before* each deadlock. At the end you will see whether the lists are still there.

# %%
# %%ranks 4
import time

import torch
import torch.distributed as dist

survived = []


def mean_over_ranks(value):
    """Return the mean of the ranks' values: a collective, so every rank must call it."""
    total = torch.tensor(float(value))
    dist.all_reduce(total)
    return total.item() / world_size


# %% [markdown]
# ## 1. A rank that does not come
#
# "Only rank 0 prints, so only rank 0 needs the mean loss." This thought is behind the next cell.
#
# > **Predict, then run.** Which ranks wait? In which line? What do the other ranks do?
#
# <details><summary>Answer</summary>
#
# Rank 0 waits in the `all_reduce` inside `mean_over_ranks`. Ranks 1, 2 and 3 skip the `if` and are
# done. They will never call `all_reduce`, so rank 0 would wait for ever.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a rank that does not come")
my_loss = [0.9, 0.7, 0.8, 0.6][rank]

if rank == 0:
    print("mean loss:", mean_over_ranks(my_loss))

# %% [markdown]
# ### How to read the explanation
#
# 1. **Who is missing?** The first part names the ranks that did not come. Look for the mistake
#    there, not at the ranks that wait.
# 2. **Where are they instead?** They may have returned, be in another call, or be dead.
# 3. **Which call do the others wait in?** `all_reduce #1` is the first all-reduce of this cell.
# 4. **Which line?** `In [4]:13` is line 13 of the cell with the number 4. It is the line of the
#    rank that *waits*. Here it is inside the function. The mistake is in another cell: it is the
#    `if`.
#
# In the picture, time runs from left to right. A hatched bar waits for ever. A dashed box is a call
# that never came.
#
# ### The fix
#
# Everybody calls the function. Only the *printing* is left to rank 0. The cell runs on the same
# four ranks, and uses the variable `my_loss` that the last cell has set.

# %%
# %%ranks 4
mean = mean_over_ranks(my_loss)
if rank == 0:
    print("mean loss:", mean)

# %% [markdown]
# ## 2. Another order
#
# Collectives carry no name. The second call of one rank meets the second call of every other rank,
# whatever they mean by it. Below, all ranks make the same two calls, but rank 2 makes them in
# another order. In real code this happens when the order comes from a `set`, or from a list of
# files in a folder.
#
# > **Predict, then run.** Which rank will the explanation name? Is any rank done with its first
# > call?
#
# <details><summary>Answer</summary>
#
# It names rank 2: three ranks call `all_reduce` first and one calls `barrier` first, so the odd one
# out is suspected. No first call is complete, because each needs all four ranks.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("another order")
samples = torch.tensor([10, 20, 30, 40])[rank].clone()

steps = ["count samples", "wait for all"]
if rank == 2:
    steps.reverse()

for step in steps:
    if step == "count samples":
        dist.all_reduce(samples)
    else:
        dist.barrier()

# %% [markdown]
# **The fix:** decide the order by something that all ranks share. Sort the names, for example. We
# also make `samples` anew. The interrupted `all_reduce` works in place and may have left anything
# in it.

# %%
# %%ranks 4
samples = torch.tensor([10, 20, 30, 40])[rank].clone()
for step in sorted(steps):  # rank 2's list is still the other way round
    if step == "count samples":
        dist.all_reduce(samples)
    else:
        dist.barrier()

samples.item()

# %% [markdown]
# ## 3. Another shape, or another root
#
# This time all ranks come, in the right order. They disagree on the *arguments*. The last batch of
# rank 3 has two samples, the other ranks have three, and somebody adds up the losses of single
# samples.
#
# > **Predict, then run.** Is this an error or a wait, on real ranks without `%%ranks`?
#
# <details><summary>Answer</summary>
#
# It depends. The library that carries the messages (gloo) does not compare shapes. If a message is
# too long, the *receiver* aborts, and it did nothing wrong. If a message is too short, the numbers
# can be wrong without any error. `%%ranks` compares the shapes before a byte is sent.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("another shape")
losses = torch.tensor([0.5, 0.4, 0.3])[: 2 if rank == 3 else 3]

dist.all_reduce(losses)

# %% [markdown]
# **The fix:** send something whose shape does not depend on the batch. The sum and the number of
# samples are always two numbers.

# %%
# %%ranks 4
losses = torch.tensor([0.5, 0.4, 0.3])[: 2 if rank == 3 else 3]
sum_and_count = torch.tensor([losses.sum(), len(losses)])
dist.all_reduce(sum_and_count)

print(f"{sum_and_count[1]:.0f} samples, mean loss {sum_and_count[0] / sum_and_count[1]:.3f}")

# %% [markdown]
# The *root* of a broadcast is the rank that sends. All ranks must name the same one. "My rank
# sends" sounds reasonable on each rank and is wrong on four:

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("another root")
weight = torch.tensor(float(rank))

dist.broadcast(weight, src=rank)

# %%
# %%ranks 4
weight = torch.tensor(float(rank + 5))
dist.broadcast(weight, src=0)
weight.item()

# %% [markdown]
# ## 4. A circle of sends
#
# `send` and `recv` are calls between two ranks. Each rank wants to give a tensor to the next rank,
# and to take one from the rank before. The last rank's next one is rank 0. With gloo, `send`
# returns only when the receiver takes the message.
#
# > **Predict, then run.** Every rank sends first and receives then. Who receives?
#
# <details><summary>Answer</summary>
#
# Nobody. Rank 0 waits until rank 1 receives. But rank 1 is in its own `send` and waits for rank 2,
# which waits for rank 3, which waits for rank 0.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a circle of sends")
mine, received = torch.tensor([rank * 1.0]), torch.zeros(1)
after, before = (rank + 1) % world_size, (rank - 1) % world_size

dist.send(mine, after)
dist.recv(received, before)

# %%
pictures_05.circle()

# %% [markdown]
# **The fix:** break the circle. It is enough that some ranks receive first. Here the odd ranks do.
# (There are other ways: calls that do not wait, such as `isend`.)

# %%
# %%ranks 4
if rank % 2 == 0:
    dist.send(mine, after)
    dist.recv(received, before)
else:
    dist.recv(received, before)
    dist.send(mine, after)

print(f"received {received.item():.0f} from rank {before}")

# %% [markdown]
# ## 5. A loop whose length depends on the data
#
# Each rank trains until *its own* loss is below 0.2. In every round there is a collective. The
# losses begin at 0.9, 0.7, 0.5 and 0.3, and each round halves them.
#
# > **Predict, then run.** How many rounds does each rank want? Which rank is missing first, and in
# > which round?
#
# <details><summary>Answer</summary>
#
# Ranks 0 to 3 want 3, 2, 2 and 1 rounds. All four take part in round 1. Rank 3 then leaves the
# loop, so it is missing in round 2: `all_reduce #2`.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a loop of another length")
my_loss, rounds = [0.9, 0.7, 0.5, 0.3][rank], 0

while my_loss > 0.2:
    my_loss /= 2  # stands for a training step
    rounds += 1
    mean = mean_over_ranks(my_loss)

# %% [markdown]
# **The fix:** all ranks must decide alike, so they must decide by a number that all of them have.
# The mean is such a number. The first line shows how far each rank had come when the deadlock ended
# the cell.

# %%
# %%ranks 4
print(f"stopped with my_loss = {my_loss} after entering round {rounds}")

my_loss, rounds, mean = [0.9, 0.7, 0.5, 0.3][rank], 0, 1.0
while mean > 0.2:
    my_loss /= 2
    rounds += 1
    mean = mean_over_ranks(my_loss)

print(f"done after {rounds} rounds, mean {mean:.3f}")

# %% [markdown]
# ## Test yourself: a deadlock that hides an error
#
# Read only the cell and its explanation. Something went wrong on rank 1 *before* it entered the
# barrier. What?

# %% tags=["raises-exception"]
# %%ranks 4
batches = [[3, 1], [], [2, 2], [5]]
try:
    mean = mean_over_ranks(batches[rank][0])
finally:
    dist.barrier()  # "so that all ranks end together"

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 1's batch is empty, so `batches[rank][0]` raised an `IndexError` there. But before Python can
# show an exception, it runs the `finally`. There rank 1 waits for the others, and they wait for
# rank 1 in `all_reduce`. The one line that explains everything is never printed. So **put no
# collective into a `finally`**. Let a rank that fails end with its error.
#
# </details>
#
# Without the `finally` you see the error at once:

# %% tags=["raises-exception"]
# %%ranks 4
mean = mean_over_ranks(batches[rank][0])

# %% [markdown]
# ## All five, and the ranks that survived them
#
# The letters are the calls of each rank, in the order in which it makes them. A hatched call waits
# for ever.

# %%
pictures_05.five_kinds()

# %% [markdown]
# > **Predict, then run.** What is in the list `survived` on rank 0? And how many different
# > processes has this notebook used so far?
#
# <details><summary>Answer</summary>
#
# All six entries: five kinds, and the wrong root. The four processes are still those of the
# beginning. After a deadlock they only get a new process group.
#
# </details>

# %%
# %%ranks 4
print(f"{len(survived)} deadlocks survived:", *survived, sep="\n- ")

# %% [markdown]
# ## Checkpoints: who writes, and who waits
#
# A *checkpoint* is a file from which training can continue. All ranks hold the same model, so rank
# 0 alone writes it. Two things can go wrong between rank 0 and the others. The first is no
# deadlock, but the opposite.
#
# > **Predict, then run.** Rank 0 needs 0.2 seconds to write. What does `path.exists()` show on each
# > rank?
#
# <details><summary>Answer</summary>
#
# True on rank 0, and False on the three others. They do not wait for rank 0, so they look too
# early. A rank that loads the file at this moment fails with "file not found".
#
# </details>

# %%
# %ranks push folder

# %%
# %%ranks 4
from pathlib import Path

path = Path(folder) / "notes.txt"
if rank == 0:
    time.sleep(0.2)  # a large file takes a while
    path.write_text("epoch 3")

path.exists()

# %% [markdown]
# So a barrier is missing. It has to be in the right place.
#
# > **Predict, then run.** What happens now?
#
# <details><summary>Answer</summary>
#
# A deadlock of the first kind. Only rank 0 enters the `if`, so only rank 0 calls `barrier`.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
if rank == 0:
    path.write_text("epoch 4")
    dist.barrier()

# %% [markdown]
# ### Half a file
#
# A cluster may end a job at any moment, also while it writes.

# %%
file = Path(folder) / "model.txt"
file.write_text("weights of epoch 3: 0.1 0.2 0.3 0.4")

try:
    with file.open("w") as writing:
        writing.write("weights of epoch 4: 0.1 0.")
        raise KeyboardInterrupt  # the job ends here
except KeyboardInterrupt:
    print("in the file now:", file.read_text())

# %% [markdown]
# Epoch 4 is not complete, and epoch 3 is gone.
#
# > **Predict.** How could you write so that there is a complete file at every moment?
#
# <details><summary>Answer</summary>
#
# Write to another name in the same folder, and rename it at the end. Renaming is a single step for
# the file system: the name means the old file before it, and the new file after it.
#
# </details>
#
# ### A file that runs code
#
# PyTorch's files are *pickles*, and a pickle may contain a call that runs when somebody opens it.


# %%
class Innocent:
    def __reduce__(self):
        return print, ("This line was printed by the file. It could have deleted your data.",)


downloaded = pickle.dumps({"weights": [0.1, 0.2], "extra": Innocent()})
_ = pickle.loads(downloaded)

# %% [markdown]
# So a checkpoint of unknown origin is a program of unknown origin. `torch.load` has an argument
# that accepts tensors and plain values only.
#
# ## Exercise: `save_checkpoint`
#
# Rank 0 alone writes the states of the model and of the optimizer, and the epoch. The file is
# complete or not there at all: if the job ends in the middle, the old file is still there. When the
# function returns, on whichever rank, the file exists.
#
# Read [Checkpoints](../phase1/GUIDELINES.md#checkpoints). For a hint, run
# `!gradsync hint save_checkpoint` in a cell of your own.


# %%
def save_checkpoint(path: str | Path, model: nn.Module, optimizer, epoch: int) -> None:
    """Have rank 0 write model, optimizer and epoch to `path`, completely or not at all."""
    raise NotImplementedError("phase1/save_checkpoint")  # write this


# %%
check("save_checkpoint", save_checkpoint)

# %% [markdown]
# ## Exercise: `load_checkpoint`
#
# Put the saved states into the model and the optimizer, and return the epoch. Each rank reads the
# file for itself: there is no collective, and it works without a process group. A file that
# contains code must not run it.
#
# Read [Checkpoints](../phase1/GUIDELINES.md#checkpoints). For a hint, run
# `!gradsync hint load_checkpoint` in a cell of your own. (The tests of `load_checkpoint` also call
# your `save_checkpoint`.)


# %%
def load_checkpoint(path: str | Path, model: nn.Module, optimizer) -> int:
    """Put a checkpoint's state into model and optimizer, and return its epoch."""
    raise NotImplementedError("phase1/load_checkpoint")  # write this


# %%
check("load_checkpoint", load_checkpoint)

# %% [markdown]
# ## What to remember
#
# - Look for the mistake at the rank that is missing, not at the ranks that wait.
# - Put a finger on each collective and ask: can I name a rank that, with some data, does not come
#   by here?
# - A branch or a loop around a collective may depend only on what all ranks know.
# - Same order, same shape, same root. Collectives carry no name that could tell them apart.
# - No collective in a `finally`, and none inside `if rank == 0`.
#
# ## Next
#
# [6. Buckets and overlap](06_buckets_and_overlap.ipynb): gradients that travel while backward still
# runs.
