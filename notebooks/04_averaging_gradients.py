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
# N ranks compute N different gradients. Here they average them, and then train exactly like one
# process. You also see the loss curves of six common mistakes.
#
# - **Afterwards you can** write a training step, an epoch and an evaluation for N ranks, and
#   guess the mistake from a loss curve.
# - **Time:** 20 minutes, and 20 more for the five exercises.
# - **You need:** shares (notebook [2](02_splitting_data.ipynb)), all-reduce (notebook
#   [3](03_all_reduce.ipynb)).

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
import pictures_04
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
# We begin with the smallest possible model: one weight `w`. It predicts `w * x`, and the loss of a
# sample is `(w * x - y) ** 2`. There are four samples, and `w` is 0.
#
# | sample | x | y | gradient at w = 0, which is −2xy |
# |---|---|---|---|
# | 0 | 1 | 2 | −4 |
# | 1 | 2 | 3 | −12 |
# | 2 | 3 | 7 | −42 |
# | 3 | 4 | 8 | −64 |
#
# Rank 0 gets samples 0 and 1. Rank 1 gets samples 2 and 3. Each rank computes the *mean* loss of
# its own two samples and calls `backward`.
#
# > **Predict, then run.** Which gradient does rank 0 have? Which one does rank 1 have? Which one
# > would a single process have, with the mean over all four samples?
#
# <details><summary>Answer</summary>
#
# Rank 0 has (−4 − 12) / 2 = −8. Rank 1 has (−42 − 64) / 2 = −53. A single process has (−4 − 12 − 42
# − 64) / 4 = −30.5. That is the mean of −8 and −53.
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

# %% [markdown]
# The notebook can collect the two gradients and compare their mean with the single process.

# %%
# %ranks pull gradient

# %%
x, y = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.0, 3.0, 7.0, 8.0])
w = torch.zeros(1, requires_grad=True)
((w * x - y) ** 2).mean().backward()

print("mean of the two ranks:", torch.stack(gradient).mean().item())
print("one process:          ", w.grad.item())

# %% [markdown]
# > **Predict, then run.** Now rank 0 gets samples 0, 1 and 2, and rank 1 gets sample 3 alone. Is
# > the mean of the two gradients still −30.5?
#
# <details><summary>Answer</summary>
#
# No. Sample 3 then counts as much as the three others together. The next cell shows −41.67. The
# mean of means is the mean over all samples only if all ranks have the same number of samples. This
# is why the sampler of notebook 2 adds padding.
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
# With the mean gradient, one step of N ranks equals one step of one process. Is that true for 60
# steps, too? We train a small network on handwritten digits (1,797 images of 8 × 8 pixels). To see
# many ranks at once, **we simulate the ranks in one process**: a list of N weight vectors
# represents N ranks. Each simulated rank computes the gradient of its own share of the batch. Then
# a function `agree` receives the list of all gradients. It returns the gradient that each rank will
# use.

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
# > **Predict, then run.** We run it with 1 rank and with 8 ranks. The global batch has 64 samples
# > in both cases, so a rank gets 64 or 8 of them. How far apart are the two loss curves?
#
# <details><summary>Answer</summary>
#
# They are the same curve. The largest difference is about 0.0000001. It comes from rounding: 8
# ranks add the same numbers in a different order.
#
# </details>

# %%
one, _ = simulate(1, use_mean)
eight, _ = simulate(8, use_mean)
difference = max(abs(a - b) for a, b in zip(one, eight, strict=True))
print(f"largest difference of the losses: {difference:.1e}")
pictures_04.same_curve(one, eight)

# %% [markdown]
# This is the rule of data-parallel training: **N ranks with B samples each compute the same as one
# process with all N · B samples.** When you change something later, test it against this rule.
#
# ## Six mistakes and their curves
#
# Each mistake below changes one thing in the simulation. An all-reduce computes only the *sum*.
# Everything else is your own code, and can be wrong.


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
pictures_04.beside_one_process(one, {name: losses for name, (losses, _) in runs.items()})

# %% [markdown]
# Look at "no averaging" and "only rank 0 has the mean". The loss goes down. If you see only rank
# 0's curve, you will think that the training code is correct.
#
# > **Predict, then run.** After the 60 steps, which of the six mistakes leave the ranks with
# > *different* models?
#
# <details><summary>Answer</summary>
#
# Three of them: "no averaging", "only rank 0 has the mean" and "each rank starts differently". In
# the other three all ranks make the same wrong step, so their models stay equal. So a comparison of
# the ranks' weights finds some mistakes, and a comparison with one process finds all of them.
#
# </details>

# %%
print(f"{'':28}largest difference between two ranks' weights")
for name, (_, ranks) in runs.items():
    stacked = torch.stack(ranks)
    print(f"{name:28}{(stacked.amax(0) - stacked.amin(0)).max():.3f}")

# %% [markdown]
# The row "each rank starts differently" has a difference from the first step to the last. All ranks
# add the same update, so the distance between them never changes. This is why training begins with
# a broadcast (notebook 3).
#
# ### A mistake that is hard to notice on two ranks
#
# The sum is N times the mean. So it has the same effect as a learning rate that is N times too
# large. Move the slider to 2 ranks. Would you notice the mistake there?


# %%
def sum_and_mean(ranks=8, learning_rate=0.3):
    summed, _ = simulate(ranks, use_sum, lr=learning_rate)
    right, _ = simulate(1, use_mean, lr=learning_rate)
    pictures_04.sum_against_mean(right, summed, ranks)


interact(sum_and_mean, ranks=(1, 16), learning_rate=(0.05, 0.6, 0.05))
sum_and_mean(2)  # a static page shows two positions of the slider: 2 ranks ...
sum_and_mean(8)  # ... and 8 ranks

# %% [markdown]
# On 2 ranks the model even learns faster with the sum, because the learning rate of 0.3 was small.
# On 8 ranks it does not learn at all. Test on more than two ranks.
#
# ## A gradient that is missing
#
# Some models have branches. If a rank's samples did not go through a branch, the rank has no
# gradient for the parameters of the branch: `grad` is `None` there. It is tempting to skip such a
# parameter. We try it on two real ranks, with plain tensors for the gradients of a `gate` and of a
# `last` layer. Rank 1 did not use the gate.
#
# > **Predict, then run.** What happens in the next cell?
#
# <details><summary>Answer</summary>
#
# A deadlock. Rank 0 calls two all-reduces and rank 1 calls one. Calls have no names, so rank 1's
# `last` is added to rank 0's `gate`. Rank 0 then waits for a second call that rank 1 never makes.
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
# The ranks are still running, with all their variables. What is in the gate now? (Do not look at
# rank 0's `last`: its all-reduce was interrupted, so the content of `last` is undefined.)

# %%
# %%ranks 2
print("gate:", gate[0].item())

# %% [markdown]
# Rank 0's gate is 6 = 1 + 5. That is the gate of rank 0 plus the *last layer* of rank 1.
#
# > **Predict, then run.** Now rank 0 skips a parameter, too: its `bias`. So both ranks make two
# > calls. Is there a deadlock? Which numbers will you see?
#
# <details><summary>Answer</summary>
#
# There is no deadlock and no error. The first call adds rank 0's gate to rank 1's last layer: 1 + 5
# = 6. The second adds rank 0's last layer to rank 1's bias: 5 + 100 = 105. Both ranks continue with
# wrong numbers. This is worse than a deadlock.
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
# So every rank must make the same calls. The calls may depend on values that are the same on *all*
# ranks. They must not depend on values that differ between ranks. Whether a parameter is **frozen**
# (`requires_grad` is False) is the same on all ranks. Whether its gradient is **missing** depends
# on the samples of this rank.
#
# In one process, a sample that does not use a parameter adds zero to its gradient. Remember that
# for the exercise.
#
# ## Exercise: `average_gradients`
#
# Replace each rank's gradients by their mean over the ranks. If a parameter has no gradient on some
# ranks, these ranks contribute zeros. Always divide by the world size. Ignore frozen parameters.
#
# Read [Gradient aggregation](../phase1/GUIDELINES.md#gradient-aggregation). For a hint, run
# `!gradsync hint average_gradients` in a new cell.


# %%
def average_gradients(model: nn.Module) -> None:
    """Replace every rank's gradients by their mean over ranks."""
    raise NotImplementedError("phase1/average_gradients")  # write this


# %%
check("average_gradients", average_gradients)

# %% [markdown]
# ## The training step
#
# A step in one process has five parts: clear the gradients, forward, loss, backward, update. The
# averaging belongs between two of them, as in the simulation above. The simulation also shows what
# happens if the gradients are not cleared.
#
# The step also returns a loss. But each rank has only the loss of its own share.
#
# ## Exercise: `train_step`
#
# Take one optimizer step on this rank's batch, with averaged gradients. `batch` is a pair of inputs
# and targets; move it to the device of the model first. Return the loss as a `float`: the mean over
# all ranks, which is the same number on each rank.
#
# Read [The training step](../phase1/GUIDELINES.md#the-training-step). For a hint, run
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
# An epoch has twelve samples in batches of 5, 5 and 2. Their mean losses are 1.0, 1.0 and 4.0.
#
# > **Predict, then run.** What is the mean loss per sample?
#
# <details><summary>Answer</summary>
#
# (5 × 1 + 5 × 1 + 2 × 4) / 12 = 1.5. The mean of the three means is 2.0: it gives two of the twelve
# samples a third of the weight.
#
# </details>

# %%
sizes, batch_losses = [5, 5, 2], [1.0, 1.0, 4.0]
print("mean of the means:    ", sum(batch_losses) / 3)
weighted = sum(size * loss for size, loss in zip(sizes, batch_losses, strict=True))
print("mean over the samples:", weighted / sum(sizes))

# %% [markdown]
# Sums and counts can be added over batches and over ranks. Means cannot. So add up sums and counts,
# and divide once, at the end.
#
# ## Exercise: `train_epoch`
#
# Train on every batch of the loader once, in training mode. If the sampler of the loader has
# `set_epoch`, call it first. Without this call, each epoch has the same order (notebook 2). Return
# the mean loss over all samples of all ranks, so a smaller last batch has less weight.
#
# Read [Epochs and evaluation](../phase1/GUIDELINES.md#epochs-and-evaluation). For a hint, run
# `!gradsync hint train_epoch` in a new cell.


# %%
def train_epoch(model: nn.Module, loader: DataLoader, loss_fn, optimizer, epoch: int) -> float:
    """Train on every batch of the loader once; return the mean loss over all ranks' samples."""
    raise NotImplementedError("phase1/train_epoch")  # write this


# %%
check("train_epoch", train_epoch)

# %% [markdown]
# ## Evaluating on N ranks
#
# The same mistake is possible with ranks instead of batches. Rank 0 classifies 45 of 50 samples
# correctly, rank 1 classifies 1 of 5.

# %%
right, samples = [45, 1], [50, 5]
accuracies = [r / s for r, s in zip(right, samples, strict=True)]
print(f"accuracies of the ranks: {accuracies}, their mean: {sum(accuracies) / 2:.1%}")
print(f"over all samples: {sum(right)} of {sum(samples)}, that is {sum(right) / sum(samples):.1%}")

# %% [markdown]
# > **Predict.** `evaluate` calls an all-reduce after each batch. Rank 0 has three batches and rank
# > 1 has none. What happens?
#
# <details><summary>Answer</summary>
#
# A deadlock: rank 0 waits in its first all-reduce, and rank 1 never calls one. So the number of
# collectives must not depend on the number of batches. A rank without samples must contribute
# zeros.
#
# </details>
#
# ## Exercise: `evaluate` of phase 1
#
# Return a dictionary with `loss`, `accuracy` (0 to 1) and `samples`, counted over all ranks. Every
# rank gets the same numbers. Compute no gradients, use evaluation mode, and afterwards restore the
# previous mode of each module.
#
# Read [Epochs and evaluation](../phase1/GUIDELINES.md#epochs-and-evaluation). For a hint, run
# `!gradsync hint phase1/evaluate` in a new cell.


# %%
def evaluate(model: nn.Module, loader: DataLoader, loss_fn) -> dict:
    """Return loss, accuracy and samples over all ranks' samples, the same on every rank."""
    raise NotImplementedError("phase1/evaluate")  # write this


# %%
check("phase1/evaluate", evaluate)

# %% [markdown]
# ## Padding and the accuracy
#
# A loader with a padded sampler repeats the first samples, so that all ranks get the same number of
# samples. In training this does little harm. In an evaluation these samples count twice.
#
# > **Predict, then run.** A model classifies 22 of 25 samples correctly: 88 %. The three others are
# > the first samples. What is the accuracy with padding on 4 ranks? Does it depend on the number of
# > ranks?
#
# <details><summary>Answer</summary>
#
# On 4 ranks there are 28 samples, 7 for each rank. The first three count twice, so 22 of 28 are
# correct: 78.6 %. The accuracy changes with the number of ranks, so two runs can't be compared.
#
# </details>

# %%
is_right = [False] * 3 + [True] * 22
padded = {}
for num_ranks in range(1, 17):
    extra = -len(is_right) % num_ranks  # number of samples that the padding repeats
    counted = is_right + is_right[:extra]
    padded[num_ranks] = sum(counted) / len(counted)
pictures_04.padded_accuracy(padded, sum(is_right) / len(is_right))

# %% [markdown]
# ## Exercise: `evaluate` of phase 2
#
# Return the same three numbers, but count each sample of the dataset exactly once, on any number of
# ranks. The function takes a dataset instead of a loader, because it splits the samples itself.
# Some ranks may get fewer samples than others, or none.
#
# If you want to use your `shard_without_padding` of notebook 2, copy it into a cell above this one:
# each notebook has its own functions.
#
# Read [Evaluation without padding](../phase2/GUIDELINES.md#evaluation-without-padding). For a hint,
# run `!gradsync hint phase2/evaluate` in a new cell.


# %%
def evaluate(model: nn.Module, dataset, loss_fn, batch_size: int) -> dict:
    """Return loss, accuracy and samples over the dataset, each sample counted exactly once."""
    raise NotImplementedError("phase2/evaluate")  # write this


# %%
check("phase2/evaluate", evaluate)

# %% [markdown]
# ## What to remember
#
# - The mean of the ranks' gradients is the gradient of the global batch, if all ranks have the same
#   number of samples.
# - An all-reduce computes the sum. Divide it by the world size, once.
# - A falling loss proves nothing. Compare with one process, and compare the weights of the ranks.
# - Every rank makes the same calls, even a rank without gradients or samples.
# - Add up sums and counts, and divide at the end. A mean of means is a different number.
#
# ## Next
#
# [5. Deadlocks](05_deadlocks.ipynb): five ways to make ranks wait forever, and how to fix them.
