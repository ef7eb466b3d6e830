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
# # 5. Deadlocks and checkpoints
#
# A *deadlock* is a wait that can never end: a rank waits for a call that another rank will never
# make. Here you make five of them on purpose, read their explanations and fix them. The last part
# is about the file from which training can continue.
#
# - **Time:** 20 minutes, and 45 more for the three exercises.
# - **You need:** collectives (notebooks [1](01_what_is_a_rank.ipynb) and
#   [3](03_launching_ranks.ipynb)).
# - **Reference:** [Deadlocks](../phase1/GUIDELINES.md#deadlocks),
#   [Checkpoints](../phase1/GUIDELINES.md#checkpoints) and
#   [Training](../phase1/GUIDELINES.md#training)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %%
import pickle
import tempfile
from pathlib import Path

import pictures_deadlocks
from torch import nn

from gradsync.notebook import check

folder = tempfile.mkdtemp()  # for the files of the last part

# %% [markdown]
# The same four ranks run all cells. Each keeps a list, `survived`, which gets an entry *before*
# each deadlock. At the end you will see whether the lists still exist.

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
# "Only rank 0 prints, so only rank 0 needs the mean loss."
#
# > **Predict, then run.** Which ranks wait, in which line? What do the others do?
#
# <details><summary>Answer</summary>
#
# Rank 0 waits in the `all_reduce` inside `mean_over_ranks`. The others skip the `if` and have
# finished, so rank 0 would wait forever.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a missing rank")
my_loss = [0.9, 0.7, 0.8, 0.6][rank]

if rank == 0:
    print("mean loss:", mean_over_ranks(my_loss))

# %% [markdown]
# **How to read it.** First look at the ranks that are *missing*, not at those that wait. What do
# they do instead: have they returned, are they in another call, or dead? `all_reduce #1` is the
# first all-reduce of this cell. The line is the one where a rank *waits*, here inside the
# function; the mistake is the `if` in another cell. In the picture a hatched bar is a call that
# waits forever, and a dashed box a call that a rank never made.
#
# **The fix:** all ranks call the function, and only rank 0 *prints*.

# %%
# %%ranks 4
mean = mean_over_ranks(my_loss)
if rank == 0:
    print("mean loss:", mean)

# %% [markdown]
# ## 2. A different order
#
# The second call of one rank is matched with the second call of every other, whatever the calls
# are for. Here rank 2 makes the same two calls in another order. In real code the order comes from
# a `set`, or from a list of files in a folder.
#
# > **Predict, then run.** Which rank will the explanation name? Does any first call complete?
#
# <details><summary>Answer</summary>
#
# Rank 2: three ranks call `all_reduce` first and one calls `barrier`. No first call completes,
# because each needs all four ranks.
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
# **The fix:** an order that is the same on all ranks, for example a sorted one. (`samples` is made
# again, because the interrupted `all_reduce` left it undefined.)

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
# All ranks make the call, but their *arguments* differ. The last batch of rank 3 has two samples,
# those of the others three.
#
# > **Predict, then run.** Without `%%ranks`, would this code raise an error, or would it wait?
#
# <details><summary>Answer</summary>
#
# It depends. gloo does not compare shapes. If a message is too large, the *receiver* aborts,
# although the mistake may be elsewhere; if it is too small, the numbers may be wrong without any
# error. `%%ranks` compares shapes before any data is sent.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a different shape")
losses = torch.tensor([0.5, 0.4, 0.3])[: 2 if rank == 3 else 3]

dist.all_reduce(losses)

# %% [markdown]
# **The fix:** send a tensor whose shape does not depend on the batch, such as a sum and a count.

# %%
# %%ranks 4
losses = torch.tensor([0.5, 0.4, 0.3])[: 2 if rank == 3 else 3]
sum_and_count = torch.tensor([losses.sum(), len(losses)])
dist.all_reduce(sum_and_count)

print(f"{sum_and_count[1]:.0f} samples, mean loss {sum_and_count[0] / sum_and_count[1]:.3f}")

# %% [markdown]
# The *root* of a broadcast is the rank that sends. Here each rank names itself:

# %% tags=["raises-exception"]
# %%ranks 4
survived.append("a different root")
weight = torch.tensor(float(rank))

dist.broadcast(weight, src=rank)

# %% [markdown]
# ## 4. A circle of sends
#
# `send` and `recv` are calls between two ranks. Each rank sends to the next one and receives from
# the one before; the last sends to rank 0. With gloo, `send` returns only when the receiver takes
# the message.
#
# > **Predict, then run.** Every rank first sends and then receives. Which rank receives?
#
# <details><summary>Answer</summary>
#
# None. Rank 0 waits for rank 1 to receive, which is in its own `send` and waits for rank 2, and so
# on around the circle.
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
pictures_deadlocks.circle()

# %% [markdown]
# **The fix:** some ranks receive first, here those with odd numbers. (Calls that do not wait, such
# as `isend`, are another way.)

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
# Each rank trains until *its own* loss is below 0.2, with a collective in every round. The losses
# begin at 0.9, 0.7, 0.5 and 0.3, and each round halves them.
#
# > **Predict, then run.** How many rounds does each rank need? Which rank is missing first, and in
# > which round?
#
# <details><summary>Answer</summary>
#
# Ranks 0 to 3 need 3, 2, 2 and 1 rounds. Rank 3 leaves the loop after the first, so it is missing
# in `all_reduce #2`.
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
# **The fix:** decide by a number that is the same on all ranks, such as the mean.

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
# Read only the cell and its explanation. What went wrong on rank 1 *before* it entered the
# barrier?

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
# Rank 1's batch is empty, so `batches[rank][0]` raised an `IndexError`. Before Python can show it,
# the `finally` runs, where rank 1 waits for ranks that wait for rank 1. So **put no collective
# into a `finally`**: a rank that fails should end with its error.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
mean = mean_over_ranks(batches[rank][0])

# %%
pictures_deadlocks.five_kinds()

# %% [markdown]
# > **Predict, then run.** What is in the list `survived` on rank 0?
#
# <details><summary>Answer</summary>
#
# All six entries: five deadlocks, and the wrong root. The four processes are those of the
# beginning; after a deadlock they only get a new process group.
#
# </details>

# %%
# %%ranks 4
print(f"{len(survived)} deadlocks survived:", *survived, sep="\n- ")

# %% [markdown]
# ## Checkpoints: one rank writes, the others wait
#
# All ranks have the same model, so only rank 0 writes it.
#
# > **Predict, then run.** Rank 0 needs 0.2 seconds to write. What does `path.exists()` show on
# > each rank?
#
# <details><summary>Answer</summary>
#
# True on rank 0, and False on the others, which look too early. A rank that loads the file at this
# moment fails.
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
# So a barrier is missing.
#
# > **Predict, then run.** What happens now?
#
# <details><summary>Answer</summary>
#
# A deadlock of the first kind: only rank 0 enters the `if`, so only rank 0 calls `barrier`.
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
# A cluster may stop a job at any moment, even while it writes.

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
# > **Predict.** The new weights are incomplete and the old ones are lost. How could you write so
# > that a complete file exists at every moment?
#
# <details><summary>Answer</summary>
#
# Write a file with another name in the same folder, and rename it at the end. Renaming is a single
# step for the file system.
#
# </details>
#
# ### A file that runs code
#
# PyTorch's files are *pickles*, and a pickle may contain a call that runs when the file is loaded:


# %%
class Innocent:
    def __reduce__(self):
        return print, ("This line was printed by the file. It could have deleted your data.",)


downloaded = pickle.dumps({"weights": [0.1, 0.2], "extra": Innocent()})
_ = pickle.loads(downloaded)

# %% [markdown]
# `torch.load` has an argument that makes it accept only tensors and plain values.
#
# ## Exercise: `save_checkpoint`
#
# On rank 0, write the states of model and optimizer, and the epoch, whole or not at all. When the
# function returns, on any rank, the new file exists.
#
# Reference: [Checkpoints](../phase1/GUIDELINES.md#checkpoints). For a hint, run `!gradsync hint
# save_checkpoint` in a new cell.


# %%
def save_checkpoint(path: str | Path, model: nn.Module, optimizer, epoch: int) -> None:
    """On rank 0, write model, optimizer and epoch to `path`, completely or not at all."""
    raise NotImplementedError("phase1/save_checkpoint")  # write this


# %%
check("save_checkpoint", save_checkpoint)

# %% [markdown]
# ## Exercise: `load_checkpoint`
#
# Put the saved states into model and optimizer, and return the epoch. Each rank reads for itself.
# (The check calls your `save_checkpoint`, too.)
#
# Reference: [Checkpoints](../phase1/GUIDELINES.md#checkpoints). For a hint, run `!gradsync hint
# load_checkpoint` in a new cell.


# %%
def load_checkpoint(path: str | Path, model: nn.Module, optimizer) -> int:
    """Put a checkpoint's state into model and optimizer, and return its epoch."""
    raise NotImplementedError("phase1/load_checkpoint")  # write this


# %%
check("load_checkpoint", load_checkpoint)

# %% [markdown]
# ## The whole training run
#
# You have all the pieces: the same weights on every rank (notebook 3), the loaders (2), an epoch
# of steps and an evaluation (4).
#
# ## Exercise: `train`
#
# Broadcast, loaders, SGD, epochs; after each epoch, evaluate. Every rank returns the same history,
# and only rank 0 prints.
#
# The check takes the functions that `train` calls from this notebook if you define them here,
# otherwise from your files in `phase1/`. So copy them there first.
#
# Reference: [Training](../phase1/GUIDELINES.md#training). For a hint, run `!gradsync hint
# phase1/train` in a new cell.


# %%
def train(
    info, model, train_dataset, val_dataset, *, epochs: int, batch_size: int, lr: float, seed=0
) -> list[dict]:
    """Train a model on all ranks; return the losses and the accuracy of each epoch."""
    raise NotImplementedError("phase1/train")  # write this


# %%
check("phase1/train", train)

# %% [markdown]
# Once everything is in your files and `gradsync check` has no more to say, train for real:
# `gradsync train` uses your trainer.
#
# ## What to remember
#
# - Look for the mistake on the rank that is missing.
# - A branch or a loop around a collective may depend only on what is the same on all ranks.
# - All ranks need the same order, shape and root.
# - Put no collective into a `finally`, and none into `if rank == 0`.
# - A checkpoint is written by one rank, under another name, and the others wait for it.
#
# This was the last lesson of phase 1. **Next:** [6. Shares that can
# resume](06_shares_that_resume.ipynb), in phase 2
