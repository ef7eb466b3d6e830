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
# make. The program does not crash and prints nothing. It just hangs. Here you make five kinds of
# deadlock on purpose, read their explanations and fix them.
#
# - **Afterwards you can** read a deadlock's explanation, find the line to change, and recognise a
#   deadlock in code before it runs.
# - **Time:** 20 minutes, and 20 more for the two exercises.
# - **You need:** collectives (notebooks [1](01_what_is_a_rank.ipynb) and [3](03_all_reduce.ipynb)).

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

# %%
import pickle
import tempfile
from pathlib import Path

import pictures_05
from torch import nn

from gradsync.notebook import check

folder = tempfile.mkdtemp()  # for the files of the last part

# %% [markdown]
# The same four ranks run all cells of this notebook. Each keeps a list, `survived`. The list gets
# an entry *before* each deadlock. At the end you will see whether the lists still exist.

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
# ## 1. A rank that is missing
#
# "Only rank 0 prints, so only rank 0 needs the mean loss." This idea leads to the next cell.
#
# > **Predict, then run.** Which ranks wait? In which line? What do the other ranks do?
#
# <details><summary>Answer</summary>
#
# Rank 0 waits in the `all_reduce` inside `mean_over_ranks`. Ranks 1, 2 and 3 skip the `if` and have
# finished. They will never call `all_reduce`, so rank 0 would wait forever.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a missing rank")
my_loss = [0.9, 0.7, 0.8, 0.6][rank]

if rank == 0:
    print("mean loss:", mean_over_ranks(my_loss))

# %% [markdown]
# ### How to read the explanation
#
# 1. **Which ranks are missing?** The first part names the ranks that did not make the call. Look
#    for the mistake there, not at the ranks that wait.
# 2. **What do they do instead?** They may have returned, be in a different call, or have died.
# 3. **In which call do the others wait?** `all_reduce #1` is the first all-reduce of this cell.
# 4. **Which line?** `In [4]:13` is line 13 of the cell with the number 4. It is the line in which a
#    rank *waits*. Here it is inside the function. The mistake is in another cell: it is the `if`.
#
# In the picture, time runs from left to right. A hatched bar is a call that waits forever. A dashed
# box is a call that a rank never made.
#
# ### The fix
#
# All ranks call the function, and only rank 0 *prints*. The cell runs on the same four ranks, and
# uses the variable `my_loss` from the previous cell.

# %%
# %%ranks 4
mean = mean_over_ranks(my_loss)
if rank == 0:
    print("mean loss:", mean)

# %% [markdown]
# ## 2. A different order
#
# Collectives have no names. The second call of one rank is matched with the second call of every
# other rank, whatever the calls are for. Below, all ranks make the same two calls, but rank 2 makes
# them in a different order. In real code this happens when the order comes from a `set`, or from a
# list of files in a folder.
#
# > **Predict, then run.** Which rank will the explanation name? Does the first call of any rank
# > complete?
#
# <details><summary>Answer</summary>
#
# It names rank 2: three ranks call `all_reduce` first and one calls `barrier` first, so the mistake
# is probably on rank 2. No first call completes, because each needs all four ranks.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a different order")
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
# **The fix:** choose an order that is the same on all ranks. Sort the names, for example. We also
# create `samples` again. The interrupted `all_reduce` works in place, so the content of `samples`
# is undefined.

# %%
# %%ranks 4
samples = torch.tensor([10, 20, 30, 40])[rank].clone()
for step in sorted(steps):  # rank 2's list is still reversed
    if step == "count samples":
        dist.all_reduce(samples)
    else:
        dist.barrier()

samples.item()

# %% [markdown]
# ## 3. A different shape, or a different root
#
# This time all ranks make the call, in the right order. But their *arguments* differ. The last
# batch of rank 3 has two samples, the batches of the other ranks have three, and the code adds up
# the losses of single samples.
#
# > **Predict, then run.** Without `%%ranks`, would this code raise an error, or would it wait?
#
# <details><summary>Answer</summary>
#
# It depends. The library that sends the messages (gloo) does not compare shapes. If a message is
# too large, the *receiver* aborts, although the mistake may be on another rank. If a message is too
# small, the numbers can be wrong without any error. `%%ranks` compares the shapes before any data
# is sent.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a different shape")
losses = torch.tensor([0.5, 0.4, 0.3])[: 2 if rank == 3 else 3]

dist.all_reduce(losses)

# %% [markdown]
# **The fix:** send a tensor whose shape does not depend on the batch. The sum and the number of
# samples are always two numbers.

# %%
# %%ranks 4
losses = torch.tensor([0.5, 0.4, 0.3])[: 2 if rank == 3 else 3]
sum_and_count = torch.tensor([losses.sum(), len(losses)])
dist.all_reduce(sum_and_count)

print(f"{sum_and_count[1]:.0f} samples, mean loss {sum_and_count[0] / sum_and_count[1]:.3f}")

# %% [markdown]
# The *root* of a broadcast is the rank that sends. All ranks must name the same one. Here each of
# the four ranks names itself:

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a different root")
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
# `send` and `recv` are calls between two ranks. Each rank sends a tensor to the next rank, and
# receives one from the rank before. The last rank sends to rank 0. With gloo, `send` returns only
# when the receiver takes the message.
#
# > **Predict, then run.** Every rank first sends and then receives. Which rank receives?
#
# <details><summary>Answer</summary>
#
# None. Rank 0 waits until rank 1 receives. But rank 1 is in its own `send` and waits for rank 2,
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
# **The fix:** break the circle. It is enough if some ranks receive first. Here the ranks with odd
# numbers receive first. (There are other ways: calls that do not wait, such as `isend`.)

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
# Each rank trains until *its own* loss is below 0.2. Every round calls a collective. The losses
# begin at 0.9, 0.7, 0.5 and 0.3, and each round halves them.
#
# > **Predict, then run.** How many rounds does each rank need? Which rank is missing first, and in
# > which round?
#
# <details><summary>Answer</summary>
#
# Ranks 0 to 3 need 3, 2, 2 and 1 rounds. All four take part in round 1. Rank 3 then leaves the
# loop, so it is missing in round 2: `all_reduce #2`.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a loop of different length")
my_loss, rounds = [0.9, 0.7, 0.5, 0.3][rank], 0

while my_loss > 0.2:
    my_loss /= 2  # instead of a training step
    rounds += 1
    mean = mean_over_ranks(my_loss)

# %% [markdown]
# **The fix:** all ranks must make the same decision, so they must use a number that is the same on
# all of them. The mean is such a number. The first line shows which round each rank had entered
# when the deadlock ended the cell.

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
# Read only the cell and its explanation. What went wrong on rank 1 *before* it entered the barrier?

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
# rank 1 in `all_reduce`. The error message is never printed. So **put no collective into a
# `finally`**. A rank that fails should end with its error.
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
# forever.

# %%
pictures_05.five_kinds()

# %% [markdown]
# > **Predict, then run.** What is in the list `survived` on rank 0? And how many different
# > processes has this notebook used so far?
#
# <details><summary>Answer</summary>
#
# All six entries: five kinds, and the wrong root. The four processes are still the same as at the
# beginning. After a deadlock they only get a new process group.
#
# </details>

# %%
# %%ranks 4
print(f"{len(survived)} deadlocks survived:", *survived, sep="\n- ")

# %% [markdown]
# ## Checkpoints: one rank writes, the others wait
#
# A *checkpoint* is a file from which training can continue. All ranks have the same model, so only
# rank 0 writes it. Two things can go wrong between rank 0 and the others. In the first case, the
# ranks do not wait although they should.
#
# > **Predict, then run.** Rank 0 needs 0.2 seconds to write. What does `path.exists()` show on each
# > rank?
#
# <details><summary>Answer</summary>
#
# True on rank 0, and False on the three others. They do not wait for rank 0, so they check for the
# file too early. A rank that loads the file at this moment fails with "file not found".
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
# So a barrier is missing. It must be in the right place.
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
# ### An incomplete file
#
# A cluster may stop a job at any moment, even while it writes a file.

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
# The weights of epoch 4 are incomplete, and the weights of epoch 3 are lost.
#
# > **Predict.** How could you write the file so that a complete file exists at every moment?
#
# <details><summary>Answer</summary>
#
# Write a file with a different name in the same folder, and rename it at the end. Renaming is a
# single step for the file system: before this step, the name refers to the old file, and after it
# to the new file.
#
# </details>
#
# ### A file that runs code
#
# PyTorch's files are *pickles*, and a pickle may contain a call that runs when the file is loaded.


# %%
class Innocent:
    def __reduce__(self):
        return print, ("This line was printed by the file. It could have deleted your data.",)


downloaded = pickle.dumps({"weights": [0.1, 0.2], "extra": Innocent()})
_ = pickle.loads(downloaded)

# %% [markdown]
# So loading a checkpoint of unknown origin can run a program of unknown origin. `torch.load` has an
# argument that makes it accept only tensors and plain values.
#
# ## Exercise: `save_checkpoint`
#
# Only rank 0 writes the states of the model and of the optimizer, and the epoch. The file is always
# complete: if the job is stopped in the middle, the old file still exists. When the function
# returns, on any rank, the new file exists.
#
# Read [Checkpoints](../phase1/GUIDELINES.md#checkpoints). For a hint, run
# `!gradsync hint save_checkpoint` in a new cell.


# %%
def save_checkpoint(path: str | Path, model: nn.Module, optimizer, epoch: int) -> None:
    """On rank 0, write model, optimizer and epoch to `path`, completely or not at all."""
    raise NotImplementedError("phase1/save_checkpoint")  # write this


# %%
check("save_checkpoint", save_checkpoint)

# %% [markdown]
# ## Exercise: `load_checkpoint`
#
# Put the saved states into the model and the optimizer, and return the epoch. Each rank reads the
# file itself: there is no collective, and it works without a process group. Code in the file must
# not run.
#
# Read [Checkpoints](../phase1/GUIDELINES.md#checkpoints). For a hint, run
# `!gradsync hint load_checkpoint` in a new cell. (The tests of `load_checkpoint` also call
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
# - Look for the mistake on the rank that is missing, not on the ranks that wait.
# - For each collective, ask: is there a rank that, with some data, does not call it?
# - A branch or a loop around a collective may depend only on values that are the same on all ranks.
# - All ranks need the same order, shape and root. Collectives have no names that distinguish them.
# - Put no collective into a `finally`, and none into `if rank == 0`.
#
# ## Next
#
# [6. Buckets and overlap](06_buckets_and_overlap.ipynb): gradients that are sent while backward
# still runs.
