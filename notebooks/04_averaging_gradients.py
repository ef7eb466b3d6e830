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
# # 4. Averaging gradients
#
# N ranks compute N gradients. Here they average them and then train exactly like one process. You
# also see the loss curves of six common mistakes.
#
# - **Time:** 20 minutes, and 30 more for the four exercises.
# - **You need:** shares (notebook [2](02_splitting_data.ipynb)), all-reduce (notebook
#   [1](01_what_is_a_rank.ipynb)).
# - **Reference:** [Gradient aggregation](../phase1/GUIDELINES.md#gradient-aggregation), [The
#   training step](../phase1/GUIDELINES.md#the-training-step) and [Epochs and
#   evaluation](../phase1/GUIDELINES.md#epochs-and-evaluation)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %%
import pictures_gradients
import torch
import torch.nn.functional as F
from ipywidgets import interact
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

from gradsync.notebook import check

torch.set_num_threads(1)  # the tensors here are too small for more

# %% [markdown]
# ## One weight, four samples
#
# The smallest possible model has one weight `w`. It predicts `w * x`, and a sample's loss is `(w *
# x - y) ** 2`. There are four samples, and `w` is 0.
#
# | sample | x | y | gradient at w = 0, which is −2xy |
# |---|---|---|---|
# | 0 | 1 | 2 | −4 |
# | 1 | 2 | 3 | −12 |
# | 2 | 3 | 7 | −42 |
# | 3 | 4 | 8 | −64 |
#
# Rank 0 gets samples 0 and 1, rank 1 gets 2 and 3. Each computes the *mean* loss of its two
# samples and calls `backward`.
#
# > **Predict, then run.** Which gradient does each rank have? Which one would a single process
# > have, with the mean over all four?
#
# <details><summary>Answer</summary>
#
# Rank 0: (−4 − 12) ÷ 2 = −8. Rank 1: (−42 − 64) ÷ 2 = −53. One process: −122 ÷ 4 = −30.5, which is
# the mean of −8 and −53.
#
# </details>

# %%
# %%ranks 2
import torch

x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[rank]
y = torch.tensor([[2.0, 3.0], [7.0, 8.0]])[rank]
w = torch.zeros(1, requires_grad=True)

loss = ((w * x - y) ** 2).mean()
loss.backward()

gradient = w.grad
gradient

# %%
# %ranks pull gradient

# %%
x, y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.0, 3.0, 7.0, 8.0])
w = torch.zeros(1, requires_grad=True)
((w * x - y) ** 2).mean().backward()

print("mean of the two ranks:", torch.stack(gradient).mean().item())
print("one process:          ", w.grad.item())

# %% [markdown]
# > **Predict, then run.** Now rank 0 gets samples 0, 1 and 2, and rank 1 only sample 3. Is the
# > mean of the two gradients still −30.5?
#
# <details><summary>Answer</summary>
#
# No: (−58 ÷ 3 − 64) ÷ 2 = −41.7. A mean of means gives every rank the same weight, so ranks need
# equally many samples. This is the second reason for padding.
#
# </details>

# %%
per_sample = torch.tensor([-4.0, -12.0, -42.0, -64.0])
for shares in ([2, 2], [3, 1], [1, 3]):
    means = [share.mean().item() for share in per_sample.split(shares)]
    mean_of_means = sum(means) / 2
    print(f"shares of {shares[0]} and {shares[1]}: {means[0]:7.2f} and {means[1]:7.2f},", end=" ")
    print(f"mean of means {mean_of_means:7.2f}, mean over samples {per_sample.mean():.2f}")

# %% [markdown]
# ## A complete training run
#
# A small network learns scikit-learn's handwritten digits, in a simulation: N models in one
# process. In each step every model gets its share of a global batch of 64 samples, and `agree`
# turns the list of gradients into what the ranks use.

# %%
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)  # (sample, pixel)
labels = torch.tensor(digits.target)
SIZES = [64 * 32, 32, 32 * 10, 10]  # weight and bias of two layers


def loss_of(weights, inputs, targets):
    """Return the mean loss of a network whose weights are one long vector."""
    w1, b1, w2, b2 = weights.split(SIZES)
    hidden = (inputs @ w1.view(64, 32) + b1).relu()
    return F.cross_entropy(hidden @ w2.view(32, 10) + b2, targets)


def gradient_of(weights, inputs, targets):
    weights = weights.clone().requires_grad_()
    return torch.autograd.grad(loss_of(weights, inputs, targets), weights)[0]


def start(seed=0):
    return 0.1 * torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(seed))


def simulate(num_ranks, agree, starts=None, lr=0.3, steps=60, batch_size=64):
    """Train on simulated ranks; return rank 0's loss after each step, and all models."""
    generator = torch.Generator().manual_seed(0)
    ranks = starts or [start()] * num_ranks
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(images), (batch_size,), generator=generator)  # the global batch
        shares = batch.chunk(num_ranks)
        pairs = zip(ranks, shares, strict=True)
        gradients = [gradient_of(mine, images[share], labels[share]) for mine, share in pairs]
        agreed = agree(gradients)
        ranks = [mine - lr * gradient for mine, gradient in zip(ranks, agreed, strict=True)]
        losses.append(loss_of(ranks[0], images, labels).item())
    return losses, ranks


def use_mean(gradients):
    return [torch.stack(gradients).mean(0)] * len(gradients)


# %% [markdown]
# > **Predict, then run.** We run it with 1 rank and with 8 ranks, so a rank gets 64 or 8 samples
# > per step. How far apart are the two loss curves?
#
# <details><summary>Answer</summary>
#
# They are the same curve, but for rounding: 8 ranks add the same numbers in another order. The
# difference is less than a hundred-thousandth.
#
# </details>

# %%
one, _ = simulate(1, use_mean)
eight, _ = simulate(8, use_mean)
difference = max(abs(a - b) for a, b in zip(one, eight, strict=True))
print(f"largest difference of the losses: {difference:.1e}")
pictures_gradients.same_curve(one, eight)

# %% [markdown]
# This is the rule of data-parallel training: **N ranks with B samples each compute the same as one
# process with all N·B.** When you change something later, test it against this rule.
#
# ## Six mistakes and their curves
#
# Each mistake changes one thing. An all-reduce computes only the *sum*; everything around it is
# your own code.


# %%
def use_sum(gradients):  # the division by N is missing
    return [torch.stack(gradients).sum(0)] * len(gradients)


def divide_twice(gradients):  # for example, once in the loss and once in the gradient
    return [torch.stack(gradients).mean(0) / len(gradients)] * len(gradients)


def keep_own(gradients):  # no all-reduce at all
    return gradients


def rank_0_only(gradients):  # `reduce` to rank 0 instead of `all_reduce`
    return [torch.stack(gradients).mean(0), *gradients[1:]]


class NeverCleared:  # the gradients of all steps so far are added up
    total = 0.0

    def __call__(self, gradients):
        self.total = self.total + torch.stack(gradients).mean(0)
        return [self.total] * len(gradients)


N = 8
own_starts = [start(seed) for seed in range(N)]
runs = {
    "sum, not mean": simulate(N, use_sum),
    "divided twice": simulate(N, divide_twice),
    "no averaging": simulate(N, keep_own),
    "only rank 0 has the mean": simulate(N, rank_0_only),
    "each rank starts differently": simulate(N, use_mean, starts=own_starts),
    "gradients never cleared": simulate(N, NeverCleared()),
}
pictures_gradients.beside_one_process(one, {name: losses for name, (losses, _) in runs.items()})

# %% [markdown]
# Look at "no averaging" and "only rank 0 has the mean". The loss goes down. From rank 0's curve
# alone you would call this code correct.
#
# > **Predict, then run.** After the 60 steps, which of the six mistakes leave the ranks with
# > *different* models?
#
# <details><summary>Answer</summary>
#
# "no averaging", "only rank 0 has the mean" and "each rank starts differently". With the other
# three, all ranks make the same wrong step. So comparing the ranks' weights finds some mistakes,
# and comparing with one process finds all of them.
#
# </details>

# %%
print(f"{'':30}largest difference between two ranks' weights")
for name, (_, ranks) in runs.items():
    stacked = torch.stack(ranks)
    print(f"{name:30}{(stacked.amax(0) - stacked.amin(0)).max():.3f}")

# %% [markdown]
# ### A mistake that is hard to notice on two ranks
#
# The sum is N times the mean, as if the learning rate were N times too large. Would you notice it
# with 2 ranks?


# %%
def sum_and_mean(ranks=8, learning_rate=0.3):
    summed, _ = simulate(ranks, use_sum, lr=learning_rate)
    right, _ = simulate(1, use_mean, lr=learning_rate)
    pictures_gradients.sum_against_mean(right, summed, ranks)


interact(sum_and_mean, ranks=(1, 16), learning_rate=(0.05, 0.6, 0.05))
sum_and_mean(2)  # a static page shows two positions of the slider: 2 ranks ...
sum_and_mean(8)  # ... and 8 ranks

# %% [markdown]
# On 2 ranks the model even learns faster, because the learning rate of 0.3 was small. On 8 ranks
# it does not learn at all. Test on more than two ranks.
#
# ## A gradient that is missing
#
# If a rank's samples did not go through some branch of a model, `grad` is `None` there. It is
# tempting to skip such a parameter. Here are plain tensors for the gradients of a `gate` and of a
# `last` layer; rank 1 did not use the gate.
#
# > **Predict, then run.** What happens?
#
# <details><summary>Answer</summary>
#
# A deadlock. Rank 0 calls two all-reduces, rank 1 one. Calls have no names, so rank 1's `last` is
# added to rank 0's `gate`, and rank 0 waits for a second call that rank 1 never makes.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 2
import torch.distributed as dist

gate = torch.full((3,), 1.0)
last = torch.full((3,), 5.0)
present = [gate, last] if rank == 0 else [last]  # rank 1 skips the gate

for gradient in present:
    dist.all_reduce(gradient)

# %% [markdown]
# The ranks still have their variables. What is in the gate now?

# %%
# %%ranks 2
print("gate:", gate[0].item())

# %% [markdown]
# Rank 0's gate is 6 = 1 + 5: its own gate plus rank 1's *last layer*.
#
# > **Predict, then run.** Now rank 0 skips a parameter, too: its `bias`. Is there a deadlock?
# > Which numbers will you see?
#
# <details><summary>Answer</summary>
#
# No deadlock and no error: both ranks make two calls. The first adds rank 0's gate to rank 1's
# last layer, 1 + 5 = 6, the second rank 0's last layer to rank 1's bias, 5 + 100 = 105. Both
# continue with wrong numbers, which is worse than a deadlock.
#
# </details>

# %%
# %%ranks 2
gradients = {"gate": torch.tensor(1.0), "last": torch.tensor(5.0), "bias": torch.tensor(100.0)}
missing = "bias" if rank == 0 else "gate"

for name, gradient in gradients.items():
    if name != missing:
        dist.all_reduce(gradient)

{name: gradient.item() for name, gradient in gradients.items() if name != missing}

# %% [markdown]
# So all ranks make the same calls, and these may depend only on what is the same on all of them.
# Whether a parameter is **frozen** is; whether its gradient is **missing** depends on the rank's
# samples. In one process, a sample that does not use a parameter adds zero to its gradient.
#
# ## Exercise: `average_gradients`
#
# Replace each rank's gradients by their mean over all ranks. A missing gradient counts as zero;
# frozen parameters are left alone.
#
# Reference: [Gradient aggregation](../phase1/GUIDELINES.md#gradient-aggregation). For a hint, run
# `!gradsync hint average_gradients` in a new cell.


# %%
def average_gradients(model: nn.Module) -> None:
    """Replace every rank's gradients by their mean over ranks."""
    raise NotImplementedError("phase1/average_gradients")  # write this


# %%
check("average_gradients", average_gradients)

# %% [markdown]
# ## Exercise: `train_step`
#
# Take one step with averaged gradients. The averaging belongs between two of the five parts of a
# step: clear, forward, loss, backward, update. Return the mean loss over all ranks.
#
# Reference: [The training step](../phase1/GUIDELINES.md#the-training-step). For a hint, run
# `!gradsync hint train_step` in a new cell.


# %%
def train_step(model: nn.Module, batch, loss_fn, optimizer) -> float:
    """Take one optimizer step with averaged gradients; return the mean loss over ranks."""
    raise NotImplementedError("phase1/train_step")  # write this


# %%
check("train_step", train_step)

# %% [markdown]
# ## Means of unequal batches
#
# > **Predict, then run.** An epoch has batches of 5, 5 and 2 samples with the mean losses 1.0, 1.0
# > and 4.0. What is the mean loss per sample?
#
# <details><summary>Answer</summary>
#
# (5 × 1 + 5 × 1 + 2 × 4) ÷ 12 = 1.5. The mean of the three means is 2.0: it gives two of twelve
# samples a third of the weight.
#
# </details>

# %%
sizes, batch_losses = [5, 5, 2], [1.0, 1.0, 4.0]
print("mean of the means:    ", sum(batch_losses) / 3)
weighted = sum(size * loss for size, loss in zip(sizes, batch_losses, strict=True))
print("mean over the samples:", weighted / sum(sizes))

# %% [markdown]
# Ranks are no different from batches. Rank 0 classifies 45 of 50 samples correctly, rank 1 one of
# 5:

# %%
right, samples = [45, 1], [50, 5]
accuracies = [r / s for r, s in zip(right, samples, strict=True)]
print(f"accuracies of the ranks: {accuracies}, their mean: {sum(accuracies) / 2:.1%}")
print(f"over all samples: {sum(right)} of {sum(samples)}, that is {sum(right) / sum(samples):.1%}")

# %% [markdown]
# Sums and counts can be added over batches and over ranks; means can't. So add up sums and counts,
# and divide once, at the end.
#
# ## Exercise: `train_epoch`
#
# Train on every batch of the loader once, in this epoch's order, and return the mean loss over all
# samples of all ranks.
#
# Reference: [Epochs and evaluation](../phase1/GUIDELINES.md#epochs-and-evaluation). For a hint,
# run `!gradsync hint train_epoch` in a new cell.


# %%
def train_epoch(model: nn.Module, loader: DataLoader, loss_fn, optimizer, epoch: int) -> float:
    """Train on every batch of the loader once; return the mean loss over all ranks' samples."""
    raise NotImplementedError("phase1/train_epoch")  # write this


# %%
check("train_epoch", train_epoch)

# %% [markdown]
# > **Predict.** `evaluate` calls an all-reduce after each batch. Rank 0 has three batches and rank
# > 1 none. What happens?
#
# <details><summary>Answer</summary>
#
# A deadlock. The number of collectives must not depend on the number of batches, and a rank
# without samples contributes zeros.
#
# </details>
#
# ## Exercise: `evaluate`
#
# Return `loss`, `accuracy` and `samples`, counted over all ranks and the same on every rank. No
# gradients, evaluation mode, and the previous mode afterwards.
#
# Reference: [Epochs and evaluation](../phase1/GUIDELINES.md#epochs-and-evaluation). For a hint,
# run `!gradsync hint phase1/evaluate` in a new cell.


# %%
def evaluate(model: nn.Module, loader: DataLoader, loss_fn) -> dict:
    """Return loss, accuracy and samples over all ranks' samples, the same on every rank."""
    raise NotImplementedError("phase1/evaluate")  # write this


# %%
check("phase1/evaluate", evaluate)

# %% [markdown]
# ## What to remember
#
# - The mean of the ranks' gradients is the gradient of the global batch, if all ranks have equally
#   many samples.
# - An all-reduce computes the sum. Divide it by the world size, once.
# - A falling loss proves nothing. Compare with one process, and the ranks' weights with each
#   other.
# - Every rank makes the same calls, even without gradients or samples.
# - Add up sums and counts, and divide at the end.
#
# **Next:** [5. Deadlocks and checkpoints](05_deadlocks.ipynb)
