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
# # 10. What PyTorch does for you
#
# In this course you write everything yourself. PyTorch has ready-made classes for most of it.
# This notebook puts two of them next to your functions: DDP, which copies the model to every rank,
# and FSDP2, which gives each rank a part of the model.
#
# - **Afterwards you can** train with DDP and FSDP2, explain what they do in each step, and avoid
#   the mistakes that they do not prevent.
# - **Time:** 20 minutes, and an hour for the two exercises, which are the largest of the course.
# - **You need:** averaged gradients (notebook [4](04_averaging_gradients.ipynb)), buckets (notebook
#   [6](06_buckets_and_overlap.ipynb)), sharding (notebook [8](08_sharding_and_pipelines.ipynb)).

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
# ## Your own training
#
# First you finish your own training. You have all the pieces: the same weights on every rank
# (notebook 3), the loaders (2), an epoch of steps (4) and an evaluation (4).
#
# One line of such a training run is often wrong, although it looks harmless: the line that prints.
#
# > **Predict, then run.** Only rank 0 should print the mean loss. What does this cell print?
#
# <details><summary>Answer</summary>
#
# Nothing. Rank 0 waits in an all-reduce that the other ranks never call: a deadlock.
# Only rank 0 should *print*. But every rank must take part in the all-reduce, so it must be before
# the `if`.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
import torch
import torch.distributed as dist

torch.set_num_threads(1)
loss = torch.tensor(float(rank))
if rank == 0:
    dist.all_reduce(loss)
    print(f"mean loss: {loss.item() / world_size}")

# %% [markdown]
# ## Exercise: `train` of phase 1
#
# Put the pieces together: every rank starts from rank 0's weights, trains on its own share, and
# evaluates after each epoch. Use plain SGD and the cross-entropy loss.
# Return a list with one dictionary for each epoch: `epoch` (counted from 0), `train_loss`,
# `val_loss` and `val_accuracy`. The last two are measured after the epoch's training.
# Every rank returns the same list, but only rank 0 prints, one line per epoch.
#
# Your function calls functions that you wrote earlier. The check takes them from this notebook if
# you define them here, otherwise from your files in `phase1/`. So copy them there first.
#
# Read [Training](../phase1/GUIDELINES.md#training). For a hint, run `!gradsync hint phase1/train`
# in a new cell.


# %%
def train(
    info, model, train_dataset, val_dataset, *, epochs: int, batch_size: int, lr: float, seed=0
) -> list[dict]:
    """Train a model on all ranks; return the losses and the accuracy of each epoch."""
    raise NotImplementedError("phase1/train")  # write this


# %%
from gradsync.notebook import check

check("phase1/train", train)

# %% [markdown]
# ## DDP: broadcast and averaging in one class
#
# `DistributedDataParallel`, called DDP, is a module that contains your model. You call it like the
# model.
#
# The next cell makes a different weight on each rank, and passes it to DDP. Then each rank computes
# `weight * input`. The input is 1 on rank 0, 2 on rank 1, and so on, so these are also the ranks'
# own gradients.
#
# > **Predict, then run.** Which weight does each rank have after `DistributedDataParallel(layer)`?
# > Which gradient does it have after `backward`?
#
# <details><summary>Answer</summary>
#
# All ranks have rank 0's weight. DDP's constructor broadcasts parameters and buffers from rank 0.
# All ranks have the gradient 2.5, the mean of 1, 2, 3 and 4. You do not call a function for that.
# DDP has registered hooks on the parameters, and `backward` returns when the gradients are
# averaged.
#
# </details>

# %%
# %%ranks 4
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(rank)
layer = nn.Linear(1, 1, bias=False)
print(f"own weight: {layer.weight.item():.2f}")

ddp = DistributedDataParallel(layer)
ddp(torch.tensor([rank + 1.0])).backward()
print(f"with DDP: {layer.weight.item():.2f}, its gradient: {layer.weight.grad.item()}")

# %% [markdown]
# DDP has a `no_sync()`, too. Inside it, `backward` only adds to this rank's own gradients.
#
# > **Predict, then run.** We clear the gradients. The first `backward` runs inside `no_sync()`, the
# > second one outside. What does each rank have after the first, and after the second?
#
# <details><summary>Answer</summary>
#
# After the first each rank has its own gradient: 1, 2, 3 and 4.
# The second backward adds the same gradients again, which makes 2, 4, 6 and 8. Then DDP averages
# these sums: 5 on every rank.
#
# </details>

# %%
# %%ranks 4
ddp.zero_grad()
with ddp.no_sync():
    ddp(torch.tensor([rank + 1.0])).backward()
print("inside no_sync:", layer.weight.grad.item())
ddp(torch.tensor([rank + 1.0])).backward()
print("after it:", layer.weight.grad.item())

# %% [markdown]
# ## The same training run in several ways
#
# We train a small model on scikit-learn's handwritten digits: 50 steps with 64 samples each. One
# process takes all 64 samples of a step. Four ranks take every fourth sample, 16 each.

# %%
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
INPUTS = torch.tensor(digits.data, dtype=torch.float32) / 16 - 0.3
TARGETS = torch.tensor(digits.target)
STEPS = torch.randint(len(TARGETS), (50, 64), generator=torch.Generator().manual_seed(0))


def new_model() -> nn.Sequential:
    """Return a model with 9,610 parameters, which have the same values each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def losses_of(model: nn.Module, mine: slice, average=None) -> list[float]:
    """Train on the samples `mine` of each step; return the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for samples in STEPS:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(INPUTS[samples[mine]]), TARGETS[samples[mine]])
        loss.backward()
        if average is not None:
            average(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


one = new_model()
one_losses = losses_of(one, slice(None))
print(
    f"one process: loss {one_losses[0]:.3f} before the first step, {one_losses[-1]:.3f} at the end"
)

# %ranks push new_model
# %ranks push losses_of

# %% [markdown]
# The same function trains with DDP. Only the model is different.

# %%
# %%ranks 4
mine = slice(rank, None, world_size)
model = new_model()
ddp_losses = losses_of(DistributedDataParallel(model), mine)
ddp_weights = [param.detach() for param in model.parameters()]

# %% [markdown]
# Now use your own function. Replace the function below by your `average_gradients` from notebook 4.
# Until you do that, the comparison does not include it.


# %%
# %%ranks 4
def average_gradients(model):
    """Replace every rank's gradients by their mean over ranks."""
    raise NotImplementedError("Paste your average_gradients into this cell.")


model = new_model()
try:
    your_losses = losses_of(model, mine, average_gradients)
except NotImplementedError as problem:
    your_losses = None
    print(problem)
your_weights = [param.detach() for param in model.parameters()]


# %%
def difference(weights: list[list[torch.Tensor]]) -> float:
    """Return the largest difference between any rank's weights and the weights of one process."""
    return max(
        (ours - theirs).abs().max().item()
        for rank_weights in weights
        for ours, theirs in zip(rank_weights, one.parameters(), strict=True)
    )


def mean(losses: list[list[float]]) -> list[float]:
    """Return the mean over the ranks of each step's loss."""
    return [sum(step) / len(step) for step in zip(*losses, strict=True)]


# %ranks pull ddp_losses
# %ranks pull ddp_weights
# %ranks pull your_losses
# %ranks pull your_weights

curves = {"DDP, 4 ranks": mean(ddp_losses)}
print(f"DDP: largest difference from one process: {difference(ddp_weights):.1e}")
if None not in your_losses:
    curves["your function, 4 ranks"] = mean(your_losses)
    print(f"yours: largest difference from one process: {difference(your_weights):.1e}")

# %% [markdown]
# Differences below 10⁻⁵ come from rounding: sums of floating-point numbers depend on the order in
# which you add. We draw the losses below, after FSDP2 has trained, too.
#
# ## DDP's buckets
#
# DDP sends gradients in buckets, like the averager of notebook 6. You can give DDP a
# *communication hook*. This is a function that DDP calls for each bucket, instead of its own
# all-reduce. Our hook records how large the bucket is, and then averages it.
#
# The model has four layers of 512 × 512 weights, so each layer's gradients take 1.05 MB.
#
# > **Predict, then run.** Each bucket can be up to 25 MiB large. How many buckets does a backward
# > pass send?
#
# <details><summary>Answer</summary>
#
# One in the first pass, and two in the second. In the first pass, DDP records the order in which
# the gradients become ready. Then it makes new buckets in this order. The first of them is limited
# to 1 MiB, so that communication starts early. All others follow your limit, `bucket_cap_mb`, which
# is 25 by default.
#
# </details>


# %%
# %%ranks 4
def record_and_average(sizes, bucket):
    """Record the bytes of a bucket, and return its average in the form that DDP expects."""
    tensor = bucket.buffer()
    sizes.append(tensor.nbytes)
    dist.all_reduce(tensor)
    result = torch.futures.Future()
    result.set_result(tensor / world_size)
    return result


sizes = []
ddp = DistributedDataParallel(nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]))
ddp.register_comm_hook(sizes, record_and_average)
for number in [1, 2]:
    sizes.clear()
    ddp(torch.randn(16, 512)).sum().backward()
    print(f"pass {number}: buckets of {sizes} bytes")

# %% [markdown]
# This hook waits for each bucket, so nothing overlaps any more. Use it to examine the buckets, and
# remove it for training.
#
# ## Mistakes that DDP does not prevent
#
# > **Predict, then run.** Three ranks have two batches, and rank 3 has only one. What happens in
# > the second step, and where?
#
# <details><summary>Answer</summary>
#
# Ranks 0, 1 and 2 wait inside `backward` for a bucket that rank 3 never sends: a deadlock.
# So DDP, like your own functions, needs the same number of steps on all ranks. Without `%%ranks`,
# the three ranks would wait until gloo's timeout of 30 minutes.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
for _ in range(1 if rank == 3 else 2):
    ddp(torch.randn(16, 512)).sum().backward()

# %% [markdown]
# If some ranks really have fewer batches, use `Join`. A rank that has finished then takes part in
# the collectives of the others, and contributes zeros.
#
# > **Predict, then run.** The gradients are 1, 2, 3 and 4 again. Ranks 0 and 1 have three batches,
# > ranks 2 and 3 have two. What is the averaged gradient in the third step?
#
# <details><summary>Answer</summary>
#
# (1 + 2 + 0 + 0) / 4 = 0.75. By default, `Join` divides by the world size, not by the number of
# ranks that still have samples. So the last steps move the weights less.
#
# </details>

# %%
# %%ranks 4
from torch.distributed.algorithms.join import Join

layer = nn.Linear(1, 1, bias=False)
ddp = DistributedDataParallel(layer)
gradients = []
with Join([ddp]):
    for _ in range(3 if rank < 2 else 2):
        ddp.zero_grad()
        ddp(torch.tensor([rank + 1.0])).backward()
        gradients.append(layer.weight.grad.item())
gradients

# %% [markdown]
# A second mistake is a parameter that a rank does not use. The next model has two branches. Ranks 0
# and 1 use branch a, ranks 2 and 3 use branch b.
#
# > **Predict, then run.** What does DDP do?
#
# <details><summary>Answer</summary>
#
# The first step seems to work, but nothing is averaged: the bucket never becomes full, so it is
# never sent. DDP notices it in the *next* forward pass, and raises an error on every rank.
#
# </details>


# %% tags=["raises-exception"]
# %%ranks 4
class Branches(nn.Module):
    """Two parameters; a forward pass uses one of them."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.b = nn.Parameter(torch.ones(1))

    def forward(self, inputs, branch):
        return inputs * getattr(self, branch)


branch = "a" if rank < 2 else "b"
branches = Branches()
ddp = DistributedDataParallel(branches)
for _ in range(2):
    ddp(torch.ones(1), branch).backward()
    print("gradients:", branches.a.grad, branches.b.grad)

# %% [markdown]
# The error message names the solution: `find_unused_parameters=True`. DDP then searches for unused
# parameters after each forward pass, and a missing gradient counts as zero. This is the rule from
# notebook 4. The search takes time, so it is not the default.

# %%
# %%ranks 4
branches = Branches()
ddp = DistributedDataParallel(branches, find_unused_parameters=True)
ddp(torch.ones(1), branch).backward()
print("gradients:", branches.a.grad, branches.b.grad)

# %% [markdown]
# ## FSDP2: each rank keeps a part
#
# With DDP every rank keeps all weights, all gradients and the complete state of the optimizer.
# Notebook 8 sharded the optimizer's state. *Fully sharded data parallel* (FSDP) shards all three.
# Its second version, FSDP2, is the function `fully_shard`. You call it for each layer, then for the
# complete model.
#
# FSDP2 is made for GPUs. Some versions of PyTorch cannot run it on a CPU, for example 2.6. So the
# next cell tries it.

# %%
# %%ranks 4
try:
    from torch.distributed.fsdp import fully_shard

    probe = nn.Linear(8, 8)
    fully_shard(probe)
    probe(torch.ones(1, 8)).sum().backward()
    has_fsdp = True
except (ImportError, AttributeError, NotImplementedError, RuntimeError) as problem:
    has_fsdp = False
    print(f"PyTorch {torch.__version__} cannot run FSDP2 here: {problem}")
has_fsdp

# %% [markdown]
# > **Predict, then run.** FSDP2 divides each parameter along its first dimension. The first layer's
# > weight has the shape (128, 64), and the last layer's bias has the shape (10,). Which shapes do
# > the parts on each of the four ranks have?
#
# <details><summary>Answer</summary>
#
# The part of the weight has the shape (32, 64) on every rank. 10 is not a multiple of 4: the first
# three ranks keep 3 elements of the bias, and the last rank keeps 1.
#
# </details>

# %%
# %%ranks 4
model = new_model()
if has_fsdp:
    for part in [model[0], model[2], model]:
        fully_shard(part)
    for name, param in model.named_parameters():
        print(f"{name}: {tuple(param.to_local().shape)} of {tuple(param.shape)}")
    kept = sum(param.to_local().numel() for param in model.parameters())
    print(f"{kept:,} of 9,610 parameters; with gradients and Adam's state {16 * kept:,} bytes")

# %% [markdown]
# With DDP each rank needs 16 bytes for each of the 9,610 parameters: 4 for the weight, 4 for the
# gradient and 8 for Adam's two numbers. Together that is 153,760 bytes. FSDP2 needs about a
# quarter.
#
# How can a layer compute if its weights are divided among four ranks? FSDP2 collects them shortly
# before the layer needs them, and frees them directly afterwards.
#
# > **Predict, then run.** There are two layers. Which collectives do you expect in a forward and a
# > backward pass: which kinds, and how many of each?
#
# <details><summary>Answer</summary>
#
# In forward, each layer has one *all-gather*: it collects all parts of the weights on every rank.
# In backward the weights are needed again, so they are gathered again. Then each layer has one
# *reduce-scatter*: it adds up the gradients, and each rank gets the sum of its own part only.
# Two layers make six collectives: four all-gathers and two reduce-scatters.
#
# An all-reduce is a reduce-scatter and an all-gather (notebook 3). So DDP costs two such passes
# over the network, and FSDP2 costs three.
#
# </details>

# %%
# %%ranks 4 --timeline
import warnings

from torch.distributed.tensor.debug import CommDebugMode  # counts collectives

warnings.simplefilter("ignore")  # the counting causes warnings that do not matter here
if has_fsdp:
    with CommDebugMode() as forward:
        output = model(torch.ones(16, 64))
        loss = nn.functional.cross_entropy(output, torch.zeros(16, dtype=torch.long))
    with CommDebugMode() as backward:
        loss.backward()
    for name, counted in {"forward": forward, "backward": backward}.items():
        print(name, {str(kind): count for kind, count in counted.get_comm_counts().items()})

# %% [markdown]
# The names in the output are PyTorch's own names for all-gather and reduce-scatter. The thin bars
# in the timeline are the six collectives.
#
# Now the same training run as before. `full_tensor()` collects a complete parameter, so that we can
# compare it.

# %%
# %%ranks 4
fsdp_losses, fsdp_weights = None, None
if has_fsdp:
    model.zero_grad()
    fsdp_losses = losses_of(model, mine)
    fsdp_weights = [param.full_tensor().detach() for param in model.parameters()]

# %%
from pictures_10 import same_losses

# %ranks pull fsdp_losses
# %ranks pull fsdp_weights
if None not in fsdp_losses:
    curves["FSDP2, 4 ranks"] = mean(fsdp_losses)
    print(f"FSDP2: largest difference from one process: {difference(fsdp_weights):.1e}")
same_losses(one_losses, curves)

# %% [markdown]
# All methods compute the same weights. They differ in memory and in communication:
#
# | | bytes for each parameter with Adam | passes over the network |
# |---|---|---|
# | DDP | 16 | 2 |
# | DDP and your `ShardedOptimizer` | 8 + 8/N | 3 |
# | FSDP2 | 16/N, and one complete layer at a time | 3 |
#
# So use DDP as long as the model fits into memory, and FSDP2 if it does not.
#
# ## A training run that is interrupted
#
# Long training runs are often interrupted: a machine fails, or the cluster needs it for another
# job. PyTorch does not continue your training automatically. It has functions to write and read
# files, and `torchrun` can start the ranks again. You decide what the file contains.
#
# > **Predict, then run.** A training run on 4 ranks has batches of 5 samples for each rank. It
# > stops after 3 steps of an epoch. It continues with 2 ranks, and with batches of 5 again. After
# > which step of the epoch does it continue? What would happen if the file contained the number of
# > steps?
#
# <details><summary>Answer</summary>
#
# All ranks together have used 60 samples. Two ranks take 10 samples in a step, so it continues
# after step 6. With the number of steps in the file, it would continue after step 3, and 30 samples
# would be used twice.
# So the file contains the number of *samples* that all ranks together have used.
#
# </details>

# %%
seen = 3 * 4 * 5
print(f"{seen} samples; with 2 ranks that is after step {seen // (2 * 5)}")

# %% [markdown]
# How often should you write the file? Writing takes time. A crash loses all steps since the last
# file, on average half of the interval.
#
# > **Predict, then run.** A step takes 0.4 s, writing takes 2 s, and there is a crash every 6
# > hours. Which interval wastes the least time: 10, 100, 1,000 or 10,000 steps?
#
# <details><summary>Answer</summary>
#
# About 1,000 steps: 1.4 % of the time is wasted.
# Writing every 10 steps takes a third of the time. With 10,000 steps, 9 % of the time is lost,
# because a crash loses more than half an hour on average.
#
# </details>

# %%
for interval in [10, 100, 1_000, 10_000]:
    training = 0.4 * interval  # seconds between two writes
    writing = 2 / (training + 2)
    lost = training / 2 / (6 * 3600)
    print(f"every {interval:>6,} steps: writing {writing:6.2%}, lost {lost:6.2%}", end=", ")
    print(f"together {writing + lost:6.2%}")

# %% [markdown]
# What happens when a rank dies? The next cell stops rank 2, as a crash would. `%%ranks` names the
# rank, because it watches the processes.

# %% tags=["raises-exception"]
# %%ranks 4
import os

if rank == 2:
    os._exit(1)
dist.all_reduce(torch.ones(1))

# %% [markdown]
# Without `%%ranks` the other ranks get an error from gloo. It contains an address, but no rank:
# *Connection closed by peer [127.0.0.1]:18854. This is typically caused by a remote worker
# crashing.* The address may even belong to a rank that stopped only because *its* neighbour had
# stopped. With 1,000 ranks you would get 999 such messages. The launcher (`torchrun`, `gradsync
# train`) started every process, so it can name the one that ended first.
#
# ## Exercise: `train` of phase 2
#
# Write the `train` of phase 1 again, with three additions.
#
# - A batch is one optimizer step, taken in `accumulation_steps` microbatches.
# - `resume_from` is the path of a file. If the file exists, training continues from it, even within
#   an epoch and with a different number of ranks. Training updates the file at least once per
#   epoch, and the file is always complete. With the optimizer's state in the file, a resumed run
#   ends with the weights of a run without interruption.
# - If a rank dies or is late, the others end with an exception within 60 seconds.
#
# Return the history of the epochs that this call completed. The check takes your other functions
# from this notebook or from your files in `phase2/`.
#
# Read [Resuming](../phase2/GUIDELINES.md#resuming) and [When a rank
# dies](../phase2/GUIDELINES.md#when-a-rank-dies). For a hint, run `!gradsync hint phase2/train` in
# a new cell.


# %%
def train(
    info,
    model,
    train_dataset,
    val_dataset,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed=0,
    accumulation_steps=1,
    resume_from=None,
) -> list[dict]:
    """Train a model on all ranks, and continue where an earlier run was interrupted."""
    raise NotImplementedError("phase2/train")  # write this


# %%
check("phase2/train", train)

# %% [markdown]
# ## What you wrote, and PyTorch's names for it
#
# | you wrote | PyTorch's version | difference |
# |---|---|---|
# | `ResumableDistributedSampler` | `DistributedSampler` | cannot resume within an epoch |
# | `ring_all_reduce` | `dist.all_reduce` | chooses among several algorithms |
# | `BucketedGradientAverager` | `DistributedDataParallel` | broadcasts, too; buckets in C++ |
# | `ShardedOptimizer` | `ZeroRedundancyOptimizer` | can collect the state for a checkpoint |
# | — | `fully_shard` | also shards weights and gradients |
# | `ColumnParallelLinear` | `parallelize_module` | applies a plan to an ordinary model |
# | `pipeline_train_step` | `torch.distributed.pipelining` | more schedules than GPipe |
# | `save_checkpoint` | `torch.distributed.checkpoint` | every rank writes its own part |
#
# The table in [What production does](../phase2/GUIDELINES.md#what-production-does) is longer.

# %% [markdown]
# ## What to remember
#
# - DDP broadcasts the model once. Then each `backward` averages the gradients, in buckets.
# - DDP does not make the numbers of steps equal. A rank with fewer batches still causes a deadlock.
# - FSDP2 keeps 1/N of everything, and gathers each layer's weights when it needs them.
# - DDP, FSDP2 and your own functions give the same weights as one process, except for rounding.
# - Store the number of samples that all ranks have used, not the number of steps.
#
# ## Next
#
# This was the last notebook. When all exercises are in your files, you can train without a
# notebook: `torchrun --nproc_per_node 2 phase2/template_trainer.py` starts two ranks.
# [When each technique is worth it](../phase2/GUIDELINES.md#when-each-technique-is-worth-it) helps
# you to choose a method for a model.
