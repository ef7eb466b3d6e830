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
# # 9. Accumulation, large batches and the learning rate
#
# Several backward passes on small batches can replace one on a large batch. Here you see how, and
# how a large batch affects learning.
#
# - **Time:** 20 minutes, and 15 more for the exercise.
# - **You need:** averaging (notebook [4](04_averaging_gradients.ipynb)), microbatches (notebook
#   [6](06_shares_that_resume.ipynb)) and buckets (notebook [8](08_buckets_and_overlap.ipynb)).
# - **Reference:** [Gradient accumulation](../phase2/GUIDELINES.md#gradient-accumulation)

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
import torch.nn.functional as F
from controls import choice, explore, slider
from pictures_accumulation import draw_curves, draw_memory, draw_update, draw_updates
from sklearn.datasets import load_digits
from torch import nn

from gradsync.notebook import check

torch.set_num_threads(1)  # the models are so small that more threads would only be slower

# %% [markdown]
# ## The batch that does not fit
#
# Backward needs many of forward's outputs again, so autograd keeps them: the **activations**. The
# next cell counts their bytes.


# %%
def kept_bytes(model, samples):
    """Return the number of bytes that autograd keeps between forward and backward."""
    kept = {}

    def note(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes  # one entry for each piece of memory
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(torch.randn(samples, 64)).sum()
    weights = {param.data_ptr() for param in model.parameters()}
    return sum(size for address, size in kept.items() if address not in weights)


model = nn.Sequential(
    nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
weight_bytes = sum(param.nbytes for param in model.parameters())
print(f"weights: {weight_bytes / 2**20:.1f} MiB, gradients: the same size")
for samples in (64, 256, 1024):
    print(f"{samples:5} samples: {kept_bytes(model, samples) / 2**20:.1f} MiB of activations")

# %% [markdown]
# > **Predict, then run.** Your batch has 1,024 samples, but memory allows 256. You run forward and
# > backward four times, on 256 each, then update once. Which become smaller: weights, gradients,
# > activations?
#
# <details><summary>Answer</summary>
#
# Only the activations. Backward frees them, so a quarter exists at a time. The gradients of the
# four passes add up in the same tensors.
#
# </details>

# %%
activations = {parts: kept_bytes(model, 1024 // parts) for parts in (1, 2, 4, 8, 16)}
draw_memory(weight_bytes, weight_bytes, activations)  # gradients are as large as weights

# %% [markdown]
# ## Gradients add up, and sizes matter
#
# A model with a single weight `w` predicts the same number for every sample. The loss is the mean
# of `(w - target)²`, so at `w = 0` the gradient is −2 times the mean target. Six samples are cut
# into parts of 4 and 2, with the means 2 and 5 and the gradients −4 and −10.
#
# > **Predict, then run.** We call `backward` for both parts without clearing `w.grad`. What does
# > it contain? What is the gradient of the whole batch?
#
# <details><summary>Answer</summary>
#
# `w.grad` is −14. The mean of all six targets is 3, so the whole batch has −6. Dividing by two
# parts gives −7, the *mean of the means*. Weighting by samples gives (4 × (−4) + 2 × (−10)) ÷ 6 =
# −6.
#
# </details>

# %%
targets = torch.tensor([1.0, 2.0, 2.0, 3.0, 4.0, 6.0])
w = torch.zeros((), requires_grad=True)

for part in (targets[:4], targets[4:]):
    ((w - part) ** 2).mean().backward()
    print(f"after a part of {len(part)} samples: w.grad = {w.grad:.0f}")

w.grad = None
((w - targets) ** 2).mean().backward()
print(f"the whole batch:           w.grad = {w.grad:.0f}")

# %% [markdown]
# With equal parts the mistake is invisible. It shows in the last batch of an epoch, which is often
# smaller. So clear the gradients once, before the first part, and weight each part's loss *before*
# `backward`.
#
# One difference remains. **BatchNorm** normalises its input with its own mean, and each input is
# only one microbatch:

# %%
norm = nn.BatchNorm1d(1, affine=False)
whole = norm(targets[:, None])
parts = torch.cat([norm(part[:, None]) for part in (targets[:4], targets[4:])])
print("one batch:        ", [round(value, 1) + 0.0 for value in whole.flatten().tolist()])
print("two microbatches: ", [round(value, 1) + 0.0 for value in parts.flatten().tolist()])

# %% [markdown]
# ## Synchronise once
#
# Each of two ranks makes four tensors of a million numbers, in 20 ms each, and all must be added
# up. When should the ranks communicate?

# %%
# %%ranks 2 --timeline
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)  # so that the two ranks do not compete for the cores


def make(number):
    """Work for 20 ms and return a tensor of a million numbers."""
    time.sleep(0.02)
    return torch.full((1_000_000,), float(10 * rank + number))


dist.barrier()  # both ranks begin together
total = torch.zeros(1_000_000)
for number in range(4):
    tensor = make(number)
    dist.all_reduce(tensor)
    total += tensor
print(f"total[0] = {total[0]:.0f}")

# %% [markdown]
# > **Predict, then run.** The next cell adds up this rank's own four tensors first and calls
# > `all_reduce` once. Is the total the same? How many bytes does this save?
#
# <details><summary>Answer</summary>
#
# The total is the same, up to rounding with real gradients. One all-reduce of 4 MB replaces four.
#
# </details>

# %%
# %%ranks 2 --timeline
dist.barrier()
total = torch.zeros(1_000_000)
for number in range(4):
    total += make(number)
dist.all_reduce(total)
print(f"total[0] = {total[0]:.0f}")

# %% [markdown]
# In training `param.grad` is the `total`: backward adds to it. The averager of notebook 8 must
# send nothing before the last microbatch, which is what its `no_sync()` is for. The last backward
# runs outside and sends the sum of all, and its buckets still overlap.
#
# ## Exercise: `train_step_accumulated`
#
# Take one optimizer step from a list of microbatches, equal to one step on the whole batch even if
# their sizes differ, synchronised once.
#
# The check needs your `BucketedGradientAverager`, too: copy it into a cell of this notebook, or
# into `phase2/template_trainer.py`.
#
# Reference: [Gradient accumulation](../phase2/GUIDELINES.md#gradient-accumulation). For a hint,
# run `!gradsync hint train_step_accumulated` in a new cell.


# %%
def train_step_accumulated(model, microbatches, loss_fn, optimizer, averager):
    """Take one optimizer step from several microbatches; return the mean loss."""
    raise NotImplementedError("phase2/train_step_accumulated")  # write this


# %%
check("train_step_accumulated", train_step_accumulated)

# %% [markdown]
# ## A larger batch and the learning rate
#
# > global batch = ranks × samples in a microbatch × microbatches
#
# > **Predict, then run.** An epoch has 60,000 samples. You double the number of microbatches. What
# > happens to the updates in an epoch, and to each rank's backward passes?
#
# <details><summary>Answer</summary>
#
# The updates halve, and so do the synchronisations. The backward passes stay: each rank works
# through the same samples in parts of the same size.
#
# </details>

# %%
explore(
    draw_update,
    ranks=slider("ranks", 4, 1, 8),
    microbatch=choice("microbatch", 32, [8, 16, 32, 64, 128]),
    microbatches=slider("microbatches", 2, 1, 8),
)

# %% [markdown]
# Fewer updates also change how the model learns. We train a small network on handwritten digits,
# in one process; the numbers would be the same on 16 ranks with 16 samples each.

# %%
digits = load_digits()
generator = torch.Generator().manual_seed(0)
order = torch.randperm(len(digits.target), generator=generator)[:1536]
INPUTS = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
INPUTS -= INPUTS.mean(dim=0)
TARGETS = torch.tensor(digits.target)[order]


def new_training(rate):
    """Return a model with the same weights each time, its optimizer, and a random generator."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return model, torch.optim.SGD(model.parameters(), lr=rate), torch.Generator().manual_seed(1)


def update(model, optimizer, generator, batch):
    """Take one step on `batch` random samples."""
    chosen = torch.randint(len(INPUTS), (batch,), generator=generator)
    optimizer.zero_grad()
    F.cross_entropy(model(INPUTS[chosen]), TARGETS[chosen]).backward()
    optimizer.step()


@torch.no_grad()
def loss_on_all(model):
    """Return the mean loss over all samples."""
    return F.cross_entropy(model(INPUTS), TARGETS).item()


def losses(batch, rate, epochs=3):
    """Train; return the loss on all samples after each update."""
    training = new_training(rate)
    curve = []
    for _ in range(epochs * len(INPUTS) // batch):
        update(*training, batch)
        curve.append(loss_on_all(training[0]))
    return curve


small = losses(batch=16, rate=0.2)
print(f"batch 16, learning rate 0.2: {len(small)} updates, loss {small[-1]:.2f}")

# %% [markdown]
# > **Predict, then run.** Three epochs at batch 16 reduce the loss from 2.3 to about 0.2. With
# > batch 256, the same rate and three epochs: is the final loss lower, equal or higher? Which rate
# > would you try instead?
#
# <details><summary>Answer</summary>
#
# Much higher: 1/16 as many updates, each about as far as before. A rate 16 times as large, 3.2,
# makes each update 16 times as large. This is the **linear scaling rule**.
#
# </details>

# %%
large = losses(batch=256, rate=0.2)
scaled = losses(batch=256, rate=3.2)
curves = {
    "batch 16, rate 0.2": (16, small),
    "batch 256, rate 0.2": (256, large),
    "batch 256, rate 3.2": (256, scaled),
}
for label, (_, curve) in curves.items():
    print(f"{label}: {len(curve):3} updates, loss {curve[-1]:.2f}")
draw_curves(curves)

# %% [markdown]
# As long as the weights hardly move, 16 small steps have nearly the same gradient, and one step
# with their mean and 16 times the rate arrives at the same place. At the start of training the
# weights move fast, so large runs begin with a **warm-up**: the rate grows from a small value.
#
# ## Where the rule ends
#
# How many updates until the loss is below 0.2? Seven batch sizes, five learning rates each:
#
# > **Predict, then run.** With the best rate for each batch size: does twice the batch always
# > halve the updates?
#
# <details><summary>Answer</summary>
#
# At first, and the best rates form a diagonal. From batch 64 on, doubling the batch saves hardly
# any updates, although each uses twice as many samples, and a rate of 6.4 is never better than
# 3.2: the steps jump over the minimum.
#
# </details>


# %%
def updates_needed(batch, rate, goal=0.2, limit=300):
    """Return the number of updates until the loss is below `goal`; None if it is over `limit`."""
    training = new_training(rate)
    for number in range(1, limit + 1):
        update(*training, batch)
        if number % 5 == 0 and loss_on_all(training[0]) < goal:
            return number
    return None


RATES = (0.4, 0.8, 1.6, 3.2, 6.4)
needed = {
    batch: {rate: updates_needed(batch, rate) for rate in RATES}
    for batch in (4, 8, 16, 32, 64, 128, 256)
}
draw_updates(needed)

# %% [markdown]
# Why? A batch's gradient is an estimate of the gradient over all samples, and the difference is
# **noise**. Here is its size in the middle of training:

# %%
training = new_training(rate=0.4)
for _ in range(50):
    update(*training, batch=32)
model = training[0]


def gradient(chosen):
    """Return the gradient of the chosen samples' mean loss as one vector."""
    loss = F.cross_entropy(model(INPUTS[chosen]), TARGETS[chosen])
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, model.parameters())])


true = gradient(torch.arange(len(INPUTS)))
print(f"norm of the true gradient: {true.norm():.2f}")
for batch in (4, 16, 64, 256):
    draws = [torch.randint(len(INPUTS), (batch,), generator=generator) for _ in range(200)]
    noise = torch.stack([(gradient(chosen) - true).norm() for chosen in draws]).mean()
    print(f"batch {batch:3}: norm of the noise {noise:.2f}")

# %% [markdown]
# Four times the batch halves the noise. Once it is smaller than the gradient itself, more samples
# hardly change the direction. That is the **critical batch size**. It depends on the model and the
# data and grows during training, so measure it. Beyond it, more ranks finish an epoch sooner, but
# the loss does not fall sooner.
#
# ## What to remember
#
# - Microbatches save activations; weights and gradients need the same memory.
# - Weight by samples, clear once, synchronise once, during the last backward.
# - A batch k times as large needs about k times the rate, until the critical batch size.
#
# Further reading: Goyal et al., *Accurate, Large Minibatch SGD* (2017); McCandlish et al., *An
# Empirical Model of Large-Batch Training* (2018).
#
# **Next:** [10. Sharding and resuming](10_sharding_and_resuming.ipynb)
