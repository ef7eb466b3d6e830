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
# # 13. What PyTorch does for you
#
# PyTorch has ready-made classes for most of what you wrote. Here two of them run next to your
# functions: DDP, which copies the model to every rank, and FSDP2, which gives each rank a part of
# it.
#
# - **Time:** 20 minutes. There is no exercise to write.
# - **You need:** averaging (notebook [4](04_averaging_gradients.ipynb)), buckets
#   ([8](08_buckets_and_overlap.ipynb)), sharding ([10](10_sharding_and_resuming.ipynb)).
# - **Reference:** [What production does](../phase2/GUIDELINES.md#what-production-does)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# ## DDP: broadcast and averaging in one class
#
# `DistributedDataParallel`, DDP, is a module that contains your model. Each rank computes `weight
# * input` with the inputs 1, 2, 3 and 4, which are also the ranks' own gradients.
#
# > **Predict, then run.** Which weight does each rank have after `DistributedDataParallel(layer)`?
# > Which gradient after `backward`?
#
# <details><summary>Answer</summary>
#
# Rank 0's weight: the constructor broadcasts parameters and buffers. The gradient is 2.5, the
# mean. DDP has registered hooks on the parameters, and `backward` returns when the gradients are
# averaged.
#
# </details>

# %%
# %%ranks 4
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
torch.manual_seed(rank)
layer = nn.Linear(1, 1, bias=False)
print(f"own weight: {layer.weight.item():.2f}")

ddp = DistributedDataParallel(layer)
ddp(torch.tensor([rank + 1.0])).backward()
print(f"with DDP: {layer.weight.item():.2f}, its gradient: {layer.weight.grad.item()}")

# %% [markdown]
# > **Predict, then run.** DDP has a `no_sync()`, too. We clear the gradients; the first `backward`
# > runs inside it, the second outside. What does each rank have after each?
#
# <details><summary>Answer</summary>
#
# First its own gradient: 1, 2, 3 and 4. The second backward adds the same again, 2, 4, 6 and 8,
# and DDP averages these sums: 5.
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
# A small model on handwritten digits, 50 steps of 64 samples. One process takes all 64; four ranks
# take every fourth sample.

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
# The same function trains with DDP, and with your own `average_gradients`, if you paste it into
# the second cell.

# %%
# %%ranks 4
mine = slice(rank, None, world_size)
model = new_model()
ddp_losses = losses_of(DistributedDataParallel(model), mine)
ddp_weights = [param.detach() for param in model.parameters()]


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
# Differences below 10⁻⁵ come from rounding. The losses are drawn below, with FSDP2's.
#
# ## DDP's buckets
#
# A *communication hook* is called for each bucket instead of DDP's own all-reduce. This one
# records a bucket's size and then averages it. Four layers of 512 × 512 weights have gradients of
# 1.05 MB each.
#
# > **Predict, then run.** Each bucket can be up to 25 MiB large. How many does a backward pass
# > send?
#
# <details><summary>Answer</summary>
#
# One in the first pass, two in the second. In the first, DDP records the order in which gradients
# become ready, then makes new buckets in that order, the first of them of at most 1 MiB, so that
# communication starts early.
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
# ## Mistakes that DDP does not prevent
#
# > **Predict, then run.** Three ranks have two batches, and rank 3 has only one. What happens in
# > the second step, and where?
#
# <details><summary>Answer</summary>
#
# Ranks 0, 1 and 2 wait inside `backward` for a bucket that rank 3 never sends. Outside this
# notebook they would wait until the group's timeout.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
for _ in range(1 if rank == 3 else 2):
    ddp(torch.randn(16, 512)).sum().backward()

# %% [markdown]
# If ranks really have unequal numbers of batches, use `Join`: a rank that has finished takes part
# in the others' collectives and contributes zeros.
#
# > **Predict, then run.** The gradients are 1, 2, 3 and 4 again. Ranks 0 and 1 have three batches,
# > ranks 2 and 3 two. What is the averaged gradient in the third step?
#
# <details><summary>Answer</summary>
#
# (1 + 2 + 0 + 0) ÷ 4 = 0.75. `Join` divides by the world size, so the last steps move the weights
# less.
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
# The next model has two branches. Ranks 0 and 1 use branch a, ranks 2 and 3 use branch b.
#
# > **Predict, then run.** What does DDP do?
#
# <details><summary>Answer</summary>
#
# The first step seems to work, but nothing is averaged: the bucket never becomes full. DDP notices
# it in the *next* forward pass, and raises an error on every rank.
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
# `find_unused_parameters=True` searches for unused parameters after each forward pass, and a
# missing gradient counts as zero, as in notebook 4. The search takes time, so it is not the
# default.

# %%
# %%ranks 4
branches = Branches()
ddp = DistributedDataParallel(branches, find_unused_parameters=True)
ddp(torch.ones(1), branch).backward()
print("gradients:", branches.a.grad, branches.b.grad)

# %% [markdown]
# ## FSDP2: each rank keeps a part
#
# *Fully sharded data parallel* shards weights, gradients and state. Its second version is the
# function `fully_shard`, which you call for each layer, then for the model. It is made for GPUs,
# and some versions of PyTorch can't run it on a CPU, so the next cell tries.

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
# > **Predict, then run.** FSDP2 divides each parameter along its first dimension. The first weight
# > has the shape (128, 64), the last bias (10,). Which shapes do the parts on four ranks have?
#
# <details><summary>Answer</summary>
#
# (32, 64) on every rank. Of the bias, the first three ranks keep 3 elements and the last keeps 1.
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
# Without sharding a rank needs 16 bytes for each of the 9,610 parameters with Adam, 153,760 bytes;
# FSDP2 needs about a quarter. It gathers a layer's weights shortly before the layer needs them,
# and frees them afterwards.
#
# > **Predict, then run.** There are two layers. Which collectives do you expect in a forward and a
# > backward pass?
#
# <details><summary>Answer</summary>
#
# In forward an *all-gather* per layer. In backward the weights are gathered again, and each layer
# has one *reduce-scatter*, after which each rank has the sum of its own part: four and two. An
# all-reduce is one of each, so DDP makes two passes over the network and FSDP2 three.
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
# The output has PyTorch's own names for them. Now the same training run; `full_tensor()` collects
# a complete parameter for the comparison.

# %%
# %%ranks 4
fsdp_losses, fsdp_weights = None, None
if has_fsdp:
    model.zero_grad()
    fsdp_losses = losses_of(model, mine)
    fsdp_weights = [param.full_tensor().detach() for param in model.parameters()]

# %%
from pictures_production import same_losses

# %ranks pull fsdp_losses
# %ranks pull fsdp_weights
if None not in fsdp_losses:
    curves["FSDP2, 4 ranks"] = mean(fsdp_losses)
    print(f"FSDP2: largest difference from one process: {difference(fsdp_weights):.1e}")
same_losses(one_losses, curves)

# %% [markdown]
# All methods compute the same weights. They differ in memory and communication:
#
# | | bytes for each parameter with Adam | passes over the network |
# |---|---|---|
# | DDP | 16 | 2 |
# | DDP and your `ShardedOptimizer` | 8 + 8/N | 3 |
# | FSDP2 | 16/N, and one complete layer at a time | 3 |
#
# So use DDP as long as the model fits, and FSDP2 if it does not.
#
# ## What to remember
#
# - DDP broadcasts once, and then averages during each `backward`, in buckets.
# - It does not make the numbers of steps equal: a rank with fewer batches still causes a deadlock.
# - FSDP2 keeps 1/N of everything, and gathers each layer's weights when it needs them.
#
# This was the last lesson. [What production does](../phase2/GUIDELINES.md#what-production-does)
# lists PyTorch's names for everything that you wrote.
