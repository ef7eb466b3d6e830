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
# # 7. Accumulation, large batches and the learning rate
#
# Several backward passes on small batches can replace one pass on a large batch. This notebook
# shows how, and how a large batch affects learning.
#
# - **Afterwards you can** divide a batch into parts without changing the result, and choose a
#   learning rate for a larger batch. You write `split_microbatches` and `train_step_accumulated`.
# - **Time:** 20 minutes, and 20 more for the two exercises.
# - **You need:** the averaging of gradients from [notebook 4](04_averaging_gradients.ipynb), and
#   buckets from [notebook 6](06_buckets_and_overlap.ipynb).

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
import torch
import torch.nn.functional as F
from controls import choice, explore, slider
from pictures_07 import draw_curves, draw_memory, draw_update, draw_updates
from sklearn.datasets import load_digits
from torch import nn

from gradsync.notebook import check

torch.set_num_threads(1)  # the models are so small that more threads would only be slower

# %% [markdown]
# ## The batch that does not fit
#
# Forward computes the outputs of each layer.
# Backward needs many of them again, so autograd keeps them until then.
# These tensors are called **activations**.
#
# The next cell counts the bytes that autograd keeps for a batch.
# It does not count the weights, because these exist in any case.


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
# > **Predict, then run.** Your batch has 1,024 samples, but memory allows for 256.
# > You run forward and backward four times, on 256 samples each, and then update the weights once.
# > Each such part is a **microbatch**. Which of the three become smaller: weights, gradients,
# > activations?
#
# <details><summary>Answer</summary>
#
# Only the activations. Backward frees them, so only one microbatch's activations exist at a time: a
# quarter.
# The gradients of the four passes are added up in the same tensors, so they need the same memory as
# before.
#
# </details>

# %%
activations = {parts: kept_bytes(model, 1024 // parts) for parts in (1, 2, 4, 8, 16)}
draw_memory(weight_bytes, weight_bytes, activations)  # gradients are as large as weights

# %% [markdown]
# ## Cutting a batch
#
# PyTorch's `chunk` cuts a tensor into parts. Is it suitable here?
#
# > **Predict, then run.** Into which sizes does `chunk(4)` cut 10 samples? And 6 samples?
#
# <details><summary>Answer</summary>
#
# 10 samples become 3, 3, 3 and 1. `chunk` rounds the size up, and the last part gets the remaining
# samples.
# 6 samples become 2, 2 and 2: three parts, although you asked for four.
# A training loop that expects four microbatches then fails.
#
# </details>

# %%
for samples in (10, 6):
    print(samples, "samples:", [len(part) for part in torch.arange(samples).chunk(4)])

# %% [markdown]
# Fair sizes differ by at most one: four parts of 10 samples have 3, 3, 2 and 2 samples.
#
# A second point is memory. You cut the batch in order to save memory, so a part must not be a copy.
# A **view** is a tensor that uses the memory of another one.
# The next cell takes samples 2 to 4 in two ways, then changes the batch.

# %%
batch = torch.arange(10)
by_slice = batch[2:5]
by_list = batch[[2, 3, 4]]
batch += 100
print("slice:", by_slice.tolist(), " a view: it has changed")
print("list: ", by_list.tolist(), "       a copy: it has not")

# %% [markdown]
# A third point is the case of more parts than samples. Then at least one part is empty, and its
# mean loss is 0 ÷ 0.

# %%
print(F.mse_loss(torch.empty(0), torch.empty(0)))

# %% [markdown]
# `nan` means "not a number". One such gradient turns every weight into `nan`.
# So a function that cuts batches must raise an error instead of making an empty part.
#
# ## Exercise: `split_microbatches`
#
# Write `split_microbatches(batch, num_microbatches)`. `batch` is a tuple of tensors, such as inputs
# and targets.
# Return a list of tuples: the parts, in order.
# Cut all tensors at the same places, so that each input keeps its target.
# Sizes differ by at most one, larger parts first; the parts are views.
# Raise a `ValueError` for fewer than one part, and for more parts than samples.
#
# Read [Microbatches](../phase2/GUIDELINES.md#microbatches). For a hint, run
# `!gradsync hint split_microbatches` in a new cell.


# %%
def split_microbatches(batch, num_microbatches):
    """Split each tensor of a batch along dim 0 into views, the larger ones first."""
    raise NotImplementedError("phase2/split_microbatches")  # write this


# %%
check("split_microbatches", split_microbatches)

# %% [markdown]
# ## Gradients add up, and sizes matter
#
# A model with a single weight `w` predicts the same number for every sample. The loss is the mean
# of `(w - target)²`.
# The batch has six samples. We cut it into parts of 4 and 2 samples. These are deliberately
# unequal.
#
# At `w = 0` the gradient of a part is −2 times the mean of its targets.
# The first part has the mean 2, so its gradient is −4. The second has the mean 5, so its gradient
# is −10.
#
# > **Predict, then run.** We call `backward` for both parts and do not clear `w.grad` in between.
# > What does `w.grad` contain then? What is the gradient of the whole batch?
#
# <details><summary>Answer</summary>
#
# `w.grad` is −4 − 10 = −14, because `backward` adds to the existing gradient.
# The mean of all six targets is 3, so the gradient of the whole batch is −6.
#
# Dividing −14 by two parts gives −7. That is wrong, too: it is the *mean of the means*, and it
# gives 2 samples the same weight as 4.
# If you weight by samples, the result is right: (4 × (−4) + 2 × (−10)) ÷ 6 = −6.
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
# With equal parts the mean of the means is right. So this mistake has an effect only in the last
# batch of an epoch, which is often smaller.
#
# A training step in microbatches therefore needs two things:
#
# - The gradients are cleared once, before the first microbatch. Clearing in between would keep only
#   the last part: −10 here.
# - Each microbatch's loss gets its weight *before* `backward`. Backward then multiplies the
#   gradient by the same weight.
#
# One difference from the whole batch remains. **BatchNorm** normalises its input with the mean of
# that input, and each input is only one microbatch:

# %%
norm = nn.BatchNorm1d(1, affine=False)
whole = norm(targets[:, None])
parts = torch.cat([norm(part[:, None]) for part in (targets[:4], targets[4:])])
print("one batch:        ", [round(value, 1) + 0.0 for value in whole.flatten().tolist()])
print("two microbatches: ", [round(value, 1) + 0.0 for value in parts.flatten().tolist()])

# %% [markdown]
# ## Synchronise once
#
# Now we use several ranks. Each microbatch gives gradients on each rank, and all of them must be
# added up.
# When should the ranks do that?
#
# Here is the same question in a simpler task. Two ranks add up tensors of a million numbers.
# Each rank makes four of them, and each takes 20 ms. A sleep replaces the work.

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
# A filled bar means that a rank works. A dashed box means that it waits for an all-reduce. The
# first, short box is the barrier.
# The times differ from run to run, because other programs use the same cores.
#
# > **Predict, then run.** The next cell adds up this rank's own four tensors first, and calls
# > `all_reduce` once, at the end.
# > Is the total the same? How many bytes does this save?
#
# <details><summary>Answer</summary>
#
# The total is the same: a sum does not depend on the order in which you add.
# (With gradients the last digits may differ, because floating-point sums are rounded.)
# One all-reduce of 4 MB replaces four of them, so three quarters of the bytes are saved.
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
# In training, `param.grad` has the role of `total`: backward adds to it.
# The averager of notebook 6 sends gradients during backward, but it must send nothing before the
# last microbatch.
# This is the purpose of its context manager `no_sync()`.
# The last backward runs outside of `no_sync()`. It sends the sum of all microbatches, and its
# buckets still overlap with the computation.
#
# ## Exercise: `train_step_accumulated`
#
# Take one optimizer step from a list of microbatches, each a tuple `(inputs, targets)`.
# The result must equal one step on the whole batch, even if the microbatches differ in size.
# Gradients are synchronised once, during the last microbatch's backward. Every other backward runs
# inside `averager.no_sync()`.
# After the last one, `averager.finish()` waits until the gradients are the mean over ranks.
# Return the mean loss over all samples of all ranks. `loss_fn` returns the mean loss of a
# microbatch.
#
# The check also needs your `BucketedGradientAverager`. Copy it from notebook 6 into a cell of this
# notebook, or into `phase2/template_trainer.py`.
#
# Read [Gradient accumulation](../phase2/GUIDELINES.md#gradient-accumulation). For a hint:
# `!gradsync hint train_step_accumulated`.


# %%
def train_step_accumulated(model, microbatches, loss_fn, optimizer, averager):
    """Take one optimizer step from several microbatches; return the mean loss."""
    raise NotImplementedError("phase2/train_step_accumulated")  # write this


# %%
check("train_step_accumulated", train_step_accumulated)

# %% [markdown]
# ## How large is the batch now?
#
# An update uses the samples of all ranks and of all microbatches. Their number is the **global
# batch**:
#
# > global batch = ranks × samples in a microbatch × microbatches
#
# > **Predict, then run.** An epoch has 60,000 samples. You double the number of microbatches. What
# > happens to the updates in an epoch, and to the backward passes of each rank? Move the sliders to
# > check it.
#
# <details><summary>Answer</summary>
#
# The number of updates halves, and so does the number of synchronisations. The number of backward
# passes stays the same: each rank still works through the same samples in parts of the same size.
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
# More ranks, larger microbatches and more microbatches all make the batch larger and reduce the
# number of updates.
# Fewer synchronisations cost less time. But fewer updates also change how the model learns.

# %% [markdown]
# ## A larger batch and the learning rate
#
# We train a small model on scikit-learn's handwritten digits, in one process.
# A batch of 256 samples could come from 16 ranks with 16 samples each: the numbers would be the
# same.

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
# > **Predict, then run.** Three epochs at batch 16 reduce the loss from 2.3 to about 0.2. Now take
# > batch 256, the same learning rate and the same three epochs. Is the final loss lower, equal or
# > higher?
# > Which learning rate would you try instead?
#
# <details><summary>Answer</summary>
#
# Much higher. With 16 times as many samples in a batch there are only 1/16 as many updates, and
# each update moves the weights about as far as before.
# The model sees the same samples, but its weights move only about a sixteenth as far.
#
# A learning rate 16 times as large makes each update 16 times as large: 0.2 × 16 = 3.2.
# This is the **linear scaling rule**: multiply the learning rate by the same factor as the batch.
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
# Why does the rule work? Take 16 small steps, one after another. As long as the weights have hardly
# moved, all 16 gradients are gradients at nearly the same point.
# Their sum is then 16 times their mean. One step with the mean of all samples and 16 times the rate
# arrives at the same place.
#
# The rule assumes that the weights hardly move during those 16 steps. At the start of training they
# move fast.
# Therefore large runs often begin with a **warm-up**: the rate grows from a small value to the full
# one during the first updates.

# %% [markdown]
# ## Where the rule ends
#
# Now we count updates, not epochs. How many are needed until the loss is below 0.2? We look at the
# loss after every fifth update.
# The next cell tries seven batch sizes with five learning rates each.
#
# > **Predict, then run.** With the best rate for each batch size: does twice the batch always halve
# > the updates?
#
# <details><summary>Answer</summary>
#
# At first, yes. From batch 4 to batch 32 each doubling saves nearly half of the updates. The best
# rate doubles each time, too: the bold cells form a diagonal.
#
# Then the diagonal stops. A rate of 6.4 is never better than 3.2, because the steps become so large
# that they jump over the minimum. For batches of 64 samples or more, doubling the batch saves
# hardly any updates, although each update uses twice as many samples.
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
# Why does it stop? A batch's gradient is an estimate of the gradient over all samples. The
# difference is called **noise**.
# The next cell measures its size in the middle of training, and the size of the true gradient. The
# size of a vector is its norm.

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
# Four times the batch halves the noise. At batch 4 the noise is several times as large as the
# gradient, and a larger batch removes it.
# At batch 64 both have about the same size. For larger batches the direction is already good, and
# more samples hardly change it.
#
# The batch size at which the gain ends is called the **critical batch size**. It depends on the
# model and the data, and it grows during training, because the gradient becomes smaller. So measure
# it; do not copy it from another model.
#
# This limits distributed training. With N ranks the batch has at least N samples.
# If the batch is larger than the critical size, more ranks finish an epoch sooner, but the loss
# does not fall sooner.

# %% [markdown]
# ## What to remember
#
# - Microbatches save activations. Weights and gradients need the same memory as before.
# - Weight each microbatch's loss by its number of samples. The mean of the means is wrong if sizes
#   differ.
# - Clear the gradients once, synchronise them once, and do it during the last backward.
# - A global batch k times as large needs about k times the learning rate, and a warm-up if training
#   becomes unstable.
# - Above the critical batch size, larger batches cost more samples and save hardly any updates.
#
# Further reading: Goyal et al., *Accurate, Large Minibatch SGD* (2017), on the linear rule and
# warm-up;
# McCandlish et al., *An Empirical Model of Large-Batch Training* (2018), on noise and the critical
# batch size.
#
# **Next:** [8. Sharding, tensor parallel and pipelines](08_sharding_and_pipelines.ipynb)
