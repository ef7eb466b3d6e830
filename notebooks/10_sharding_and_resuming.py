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
# # 10. Sharding, evaluating and resuming
#
# Three exercises complete the trainer of phase 2: an optimizer whose state is spread over the
# ranks, an evaluation that counts each sample once, and a training run that survives its
# interruptions. The parts are independent.
#
# - **Time:** 20 minutes, and two hours for the exercises; `train` is the largest of the course.
# - **You need:** notebooks [6](06_shares_that_resume.ipynb) and [9](09_accumulation.ipynb).
# - **Reference:** [Sharding the optimizer](../phase2/GUIDELINES.md#sharding-the-optimizer),
#   [Evaluation without padding](../phase2/GUIDELINES.md#evaluation-without-padding) and
#   [Resuming](../phase2/GUIDELINES.md#resuming)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %%
import torch
from controls import explore, slider
from pictures_gradients import padded_accuracy
from pictures_splitting import draw_memory
from torch import nn

from gradsync.notebook import check

# %% [markdown]
# ## Part 1: the optimizer's state
#
# **Adam** keeps two numbers for each parameter, its *state*: a running mean of the gradient, and
# one of its square.
#
# > **Predict, then run.** The weights below are float32. How many bytes does Adam's state take for
# > each weight? How many does plain SGD's?
#
# <details><summary>Answer</summary>
#
# 8, twice the weight itself; with the gradient, 16 bytes per parameter. Plain SGD has no state.
#
# </details>


# %%
def state_bytes(optimizer):
    """Return the bytes of an optimizer's state, without its counters."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if torch.is_tensor(value) and value.dim())


model = nn.Linear(1000, 1000)
model(torch.randn(1, 1000)).sum().backward()
print(f"weights:        {sum(param.nbytes for param in model.parameters()):,} bytes")
for optimizer in (
    torch.optim.SGD(model.parameters(), lr=0.1),
    torch.optim.Adam(model.parameters()),
):
    optimizer.step()
    print(f"state of {type(optimizer).__name__ + ':':6} {state_bytes(optimizer):,} bytes")

# %% [markdown]
# After the all-reduce all ranks have the same gradients, so they compute and keep N copies of the
# same state. **ZeRO** gives each parameter an *owner*, and only the owner keeps its state. That is
# stage 1; stage 2 also *shards* the gradients, stage 3 the weights.
#
# > **Predict, then run.** Eight ranks train with Adam. How many of the 16 bytes does each rank
# > keep at stage 1? And at stage 3?
#
# <details><summary>Answer</summary>
#
# Stage 1: 4 + 4 + 8 ÷ 8 = 9. Stage 3: 16 ÷ 8 = 2.
#
# </details>


# %%
def memory(ranks):
    """Draw the bytes per parameter that each of the ranks keeps."""
    return draw_memory(
        {
            "not sharded": {"weight": 4, "gradient": 4, "state": 8},
            "stage 1": {"weight": 4, "gradient": 4, "state": 8 / ranks},
            "stage 2": {"weight": 4, "gradient": 4 / ranks, "state": 8 / ranks},
            "stage 3": {"weight": 4 / ranks, "gradient": 4 / ranks, "state": 8 / ranks},
        },
        ranks,
    )


explore(memory, ranks=slider("ranks", 8, 1, 64))

# %% [markdown]
# ### The owner of each parameter
#
# All ranks choose the same owners without a message, so the rule may use only the parameters and
# their order.
#
# > **Predict, then run.** One rule gives the parameters to two ranks in turn. How many elements
# > does each get?
#
# <details><summary>Answer</summary>
#
# Rank 0 gets all weights, rank 1 all biases. A good rule balances *elements*.
#
# </details>

# %%
model = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 200), nn.Linear(200, 100))
sizes = [param.numel() for param in model.parameters()]
print("elements of each parameter:", sizes)
print("in turn:   rank 0 owns", sum(sizes[0::2]), " rank 1 owns", sum(sizes[1::2]))
print("even part:", sum(sizes) // 2)

# %% [markdown]
# ### A step, and the messages after it
#
# Two ranks have the same two weights, both 1.0, and the same averaged gradients. Each steps an
# ordinary optimizer for the weight that it owns.
#
# > **Predict, then run.** Which values does each rank have afterwards?
#
# <details><summary>Answer</summary>
#
# Rank 0 has 0.9 and 1.0, rank 1 has 1.0 and 0.9: two different models. So the owners send their
# new weights to all, in every step.
#
# </details>

# %%
# %%ranks 2
import torch

weights = [torch.tensor(1.0, requires_grad=True) for _ in range(2)]
for weight in weights:
    weight.grad = torch.tensor(1.0)  # already averaged: the same on both ranks

optimizer = torch.optim.SGD([weights[rank]], lr=0.1)  # only for this rank's own weight
optimizer.step()
print([round(weight.item(), 1) for weight in weights])

# %% [markdown]
# Users see one optimizer with all parameters; inside is a second one for this rank's share. Both
# have **parameter groups**, dictionaries with settings such as `lr`.
#
# > **Predict, then run.** A scheduler halves the learning rate of the outer optimizer. What is the
# > learning rate of the inner one?
#
# <details><summary>Answer</summary>
#
# Still 0.1. Your `step` must copy the settings from the outer groups to the inner ones.
#
# </details>

# %%
weight = nn.Parameter(torch.tensor(1.0))
outer = torch.optim.SGD([weight], lr=0.1)
inner = torch.optim.SGD([weight], lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(outer, step_size=1, gamma=0.5)
outer.step()
scheduler.step()
print("outer:", outer.param_groups[0]["lr"], " inner:", inner.param_groups[0]["lr"])

# %% [markdown]
# ### Exercise: `ShardedOptimizer`
#
# Write ZeRO's stage 1 around any `optimizer_class`. It behaves like any other optimizer: groups,
# `add_param_group`, `zero_grad`, closures, schedulers.
#
# Reference: [Sharding the optimizer](../phase2/GUIDELINES.md#sharding-the-optimizer). For a hint,
# run `!gradsync hint ShardedOptimizer` in a new cell.


# %%
class ShardedOptimizer(torch.optim.Optimizer):
    """Wraps any optimizer; each rank keeps the state of only its share of the parameters."""

    def __init__(self, params, optimizer_class, **kwargs):
        raise NotImplementedError("phase2/ShardedOptimizer")  # write this

    def add_param_group(self, param_group):
        """Add a group, and give each of its parameters an owner."""
        raise NotImplementedError("phase2/ShardedOptimizer")  # write this

    def step(self, closure=None):
        """Update this rank's share, then receive the other shares; return the closure's result."""
        raise NotImplementedError("phase2/ShardedOptimizer")  # write this


# %%
check("ShardedOptimizer", ShardedOptimizer)

# %% [markdown]
# ## Part 2: an evaluation without padding
#
# > **Predict, then run.** A model classifies 22 of 25 samples correctly, 88 %. The three others
# > are the first samples. What is the accuracy with padding on 4 ranks?
#
# <details><summary>Answer</summary>
#
# 28 samples, 7 per rank. The first three count twice, so 22 of 28 are correct: 78.6 %. It changes
# with the number of ranks, so two runs can't be compared.
#
# </details>

# %%
is_right = [False] * 3 + [True] * 22
padded = {}
for num_ranks in range(1, 17):
    extra = -len(is_right) % num_ranks  # number of samples that the padding repeats
    counted = is_right + is_right[:extra]
    padded[num_ranks] = sum(counted) / len(counted)
padded_accuracy(padded, sum(is_right) / len(is_right))

# %% [markdown]
# ### Exercise: `evaluate`
#
# As in phase 1, but each sample of the dataset counts exactly once, on any number of ranks. Some
# ranks get fewer samples, or none. The check finds `shard_without_padding` in this notebook or in
# `phase2/template_data_loader.py`.
#
# Reference: [Evaluation without padding](../phase2/GUIDELINES.md#evaluation-without-padding). For
# a hint, run `!gradsync hint phase2/evaluate` in a new cell.


# %%
def evaluate(model: nn.Module, dataset, loss_fn, batch_size: int) -> dict:
    """Return loss, accuracy and samples over the dataset, each sample counted exactly once."""
    raise NotImplementedError("phase2/evaluate")  # write this


# %%
check("phase2/evaluate", evaluate)

# %% [markdown]
# ## Part 3: a run that is interrupted
#
# PyTorch does not continue a training run by itself. `torchrun` can start the ranks again, but you
# decide what they find in a file.
#
# > **Predict, then run.** 4 ranks with batches of 5 stop after 3 steps of an epoch, and go on with
# > 2 ranks and batches of 5. After which step of the epoch do they continue? What if the file
# > contained the number of steps?
#
# <details><summary>Answer</summary>
#
# All ranks together have used 60 samples, and two ranks take 10 per step, so after step 6. With
# the number of steps in the file it would be step 3, and 30 samples would be used twice. So the
# file counts *samples*.
#
# </details>

# %%
seen = 3 * 4 * 5
print(f"{seen} samples; with 2 ranks that is after step {seen // (2 * 5)}")

# %% [markdown]
# > **Predict, then run.** How often should you write it? A step takes 0.4 s, writing 2 s, and
# > there is a crash every 6 hours, which loses half an interval on average. Which interval wastes
# > the least: 10, 100, 1,000 or 10,000 steps?
#
# <details><summary>Answer</summary>
#
# About 1,000: 1.4 % of the time. Every 10 steps, writing takes a third of the time; every 10,000,
# a crash loses more than half an hour.
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
# What happens when a rank dies? The next cell stops rank 2, as a crash would.

# %% tags=["raises-exception"]
# %%ranks 4
import os

import torch
import torch.distributed as dist

if rank == 2:
    os._exit(1)
dist.all_reduce(torch.ones(1))

# %% [markdown]
# `%%ranks` watches the processes, so it can name the rank. Otherwise the others get an error from
# gloo, *Connection closed by peer [127.0.0.1]:18854*, with an address that may belong to a rank
# that stopped only because *its* neighbour had. The launcher started every process, so it knows
# which one ended first.
#
# ### Exercise: `train`
#
# Write `train` again, with three additions. A batch is taken in `accumulation_steps` microbatches.
# `resume_from` is the path of a file from which training goes on if it exists, in mid-epoch and on
# another number of ranks, too, and which it keeps up to date, whole or not at all. And if a rank
# dies or is late, the others end with an exception within 60 seconds.
#
# The check takes your other functions from this notebook or from your files in `phase2/`.
#
# Reference: [Resuming](../phase2/GUIDELINES.md#resuming) and [When a rank
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
# ### What to remember
#
# - Adam's state is twice as large as the weights. With sharding each of N ranks keeps 1/N of it,
#   and owners send their new weights in every step.
# - In an evaluation, padding makes the result wrong, by an amount that depends on N.
# - A checkpoint counts the samples that all ranks have used, not steps.
#
# **Next:** [11. Splitting a model](11_splitting_a_model.ipynb)
