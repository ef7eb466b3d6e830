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
# # 12. What it costs
#
# This notebook measures communication, describes it with two numbers, and uses them to predict
# times that you have not measured: on this machine, then on a cluster of 1,024 ranks.
#
# - **Time:** 20 minutes. There is no exercise to write.
# - **You need:** the ring (notebook [7](07_ring.ipynb)) and buckets (notebook
#   [8](08_buckets_and_overlap.ipynb)).
# - **Reference:** [When each technique is worth
#   it](../phase2/GUIDELINES.md#when-each-technique-is-worth-it), and [Speed](../docs/speed.md)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# Your times will differ from those that you see here.
#
# ## A small tensor and a large one
#
# > **Predict, then run.** Two ranks all-reduce 4 bytes, then 4,000,000 bytes, a million times as
# > much. How many times as long does it take?
#
# <details><summary>Answer</summary>
#
# Only some ten times as long. Both ranks must start the call, wake up and exchange messages. This
# is the *latency*, and every all-reduce has it, however small the tensor.
#
# </details>

# %%
# %%ranks 2
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
for size in [4, 4_000_000]:
    tensor = torch.zeros(size // 4)  # a float32 has 4 bytes
    seconds = []
    for _ in range(20):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        print(f"{size:>9,} bytes: fastest {1000 * min(seconds):5.2f} ms,", end=" ")
        print(f"slowest {1000 * max(seconds):5.2f} ms")

# %% [markdown]
# The same call can take several times as long when other programs use the cores, so a single
# measurement is not reliable.
#
# ## How to measure
#
# 1. **Start together**, with a barrier. Otherwise you measure how late the other rank is.
# 2. **Repeat short calls**, and divide.
# 3. **Take turns.** Measure all sizes once, then all of them again, so that interference affects
#    all a little.
# 4. **Keep the fastest.** Other programs can make a call slower, but never faster.

# %%
import time

import torch
import torch.distributed as dist


def measure(sizes: list[int], rounds: int) -> dict[int, float]:
    """Return the shortest time of an all-reduce in seconds, for each size in bytes."""
    tensors = {size: torch.zeros(size // 4) for size in sizes}
    fastest = dict.fromkeys(sizes, float("inf"))
    for _ in range(rounds):
        for size, tensor in tensors.items():
            calls = 5 if size < 1_000_000 else 1
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(tensor)
            fastest[size] = min(fastest[size], (time.perf_counter() - began) / calls)
    return fastest


# %% [markdown]
# We fit a formula to eight sizes. Seven others are *held out*: the formula must predict them.

# %%
FITTED = [64, 1_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000]
HELD_OUT = [400, 6_000, 40_000, 128_000, 500_000, 2_000_000, 8_000_000]
SIZES = FITTED + HELD_OUT

# %ranks push measure
# %ranks push SIZES

# %%
# %%ranks 2
seconds = measure(SIZES, rounds=60)

# %% [markdown]
# An all-reduce is complete when the slower rank has finished, so we use the longer of the two
# times.

# %%
from pictures_costs import amount, prediction

# %ranks pull seconds
on_two = {size: max(mine[size] for mine in seconds) for size in SIZES}
for size in SIZES:
    print(f"{amount(size):>7}: {1000 * on_two[size]:7.3f} ms")

# %% [markdown]
# ## Two numbers
#
# On the ring N ranks need 2(N − 1) steps, in each of which every rank sends 1/N of the tensor. For
# S bytes we assume that each step takes a fixed time **α**, the latency, and each byte of the
# chunk a time **β**, where 1/β is the *bandwidth*:
#
# > time = 2(N − 1) · (α + S/N · β)
#
# Least squares finds the pair that fits the eight sizes best. Each equation is divided by its
# measured time; otherwise the largest tensor would determine nearly everything.

# %%
import numpy as np


def fit(times: dict[int, float], ranks: int) -> tuple[float, float]:
    """Return alpha in seconds and beta in seconds per byte, by least squares."""
    steps = 2 * (ranks - 1)
    sizes, measured = np.array(list(times)), np.array(list(times.values()))
    equations = np.stack([np.full(len(sizes), steps), steps * sizes / ranks], axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(equations / measured[:, None], np.ones(len(sizes)))
    return alpha, beta


def ring(size: float, ranks: int, alpha: float, beta: float) -> float:
    """Return the seconds that an all-reduce around a ring takes, by the formula."""
    return 2 * (ranks - 1) * (alpha + size / ranks * beta)


alpha, beta = fit({size: on_two[size] for size in FITTED}, ranks=2)
print(f"latency α: {1e6 * alpha:.0f} µs in each step")
print(f"bandwidth 1/β: {amount(1 / beta)} per second")

# %% [markdown]
# α contains the work of Python and of `%%ranks`, which checks every collective for deadlocks. gloo
# alone has a smaller latency.
#
# ## Predict times that were not measured
#
# > **Predict, then run.** How large will the errors be for the seven held-out sizes: 1 %, 10 % or
# > 100 %?
#
# <details><summary>Answer</summary>
#
# Mostly around 10 %, more when other programs are busy. That is good enough to decide how large
# buckets should be, and not good enough to choose between two libraries that differ by 10 %.
#
# </details>


# %%
def on_two_ranks(size: float) -> float:
    """Return the predicted seconds for two ranks of this machine."""
    return ring(size, 2, alpha, beta)


print("   size   measured   predicted    error")
for size in HELD_OUT:
    error = on_two_ranks(size) / on_two[size] - 1
    print(f"{amount(size):>7}", end=" ")
    print(f"{1000 * on_two[size]:7.3f} ms {1000 * on_two_ranks(size):7.3f} ms {error:+7.1%}")

prediction(
    {size: on_two[size] for size in FITTED}, {size: on_two[size] for size in HELD_OUT}, on_two_ranks
)

# %% [markdown]
# A positive error means that the prediction is too long. Some errors are the same in every run: a
# tensor that fits into the processor's caches is faster per byte, which a formula with one β can't
# describe. The two parts of the formula are equal at S = N · α/β. Below, latency dominates, above
# the bytes:

# %%
print(f"latency and bytes cost the same at {amount(2 * alpha / beta)}")

# %% [markdown]
# ## One message or a hundred
#
# > **Predict, then run.** 100 gradients of 4,000 bytes each: all-reduce them one by one, or copied
# > into one tensor? By the formula, how many times faster is one message?
#
# <details><summary>Answer</summary>
#
# The hundred calls spend nearly all of their time on latency, so the factor is some tens. This is
# the reason for the buckets of notebook 8.
#
# </details>

# %%
# %%ranks 2
gradients = [torch.zeros(1_000) for _ in range(100)]
one_by_one, together = [], []
for _ in range(15):
    dist.barrier()
    began = time.perf_counter()
    for gradient in gradients:
        dist.all_reduce(gradient)
    one_by_one.append(time.perf_counter() - began)

    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(torch.cat(gradients))
    together.append(time.perf_counter() - began)
many_and_one = min(one_by_one), min(together)

# %%
# %ranks pull many_and_one
many, one = (max(times) for times in zip(*many_and_one, strict=True))
predicted_many, predicted_one = 100 * on_two_ranks(4_000), on_two_ranks(400_000)
print(f"predicted: {1000 * predicted_many:6.1f} ms and {1000 * predicted_one:5.2f} ms,", end=" ")
print(f"{predicted_many / predicted_one:.0f} times faster")
print(f"measured:  {1000 * many:6.1f} ms and {1000 * one:5.2f} ms,", end=" ")
print(f"{many / one:.0f} times faster")

# %% [markdown]
# ## Four ranks on the same machine
#
# The formula contains N, so α and β from two ranks also predict four.
#
# > **Predict, then run.** Is this prediction about right, too short or too long, if the machine
# > has only two cores?
#
# <details><summary>Answer</summary>
#
# Much too short. The formula assumes that all ranks work at the same time, but two of them wait
# for a core in every step. α and β describe a machine *and* the way in which it is used.
#
# </details>

# %%
# %%ranks 4
import torch
import torch.distributed as dist

torch.set_num_threads(1)

# %%
# %ranks push measure
# %ranks push SIZES

# %%
# %%ranks 4
seconds = measure(SIZES, rounds=10)

# %%
import os

from pictures_costs import several

# %ranks pull seconds
on_four = {size: max(mine[size] for mine in seconds) for size in SIZES}
alpha_4, beta_4 = fit({size: on_four[size] for size in FITTED}, ranks=4)
several(
    {"measured, 2 ranks": on_two, "measured, 4 ranks": on_four},
    {
        "formula with α, β from 2 ranks, for 4": lambda size: ring(size, 4, alpha, beta),
        "formula with α, β from 4 ranks, for 4": lambda size: ring(size, 4, alpha_4, beta_4),
    },
)
print(f"{os.cpu_count()} cores")
for ranks, a, b in [(2, alpha, beta), (4, alpha_4, beta_4)]:
    print(f"fitted with {ranks} ranks: α {1e6 * a:.0f} µs, 1/β {amount(1 / b)} per second")
for name, (a, b) in {"2 ranks": (alpha, beta), "4 ranks": (alpha_4, beta_4)}.items():
    errors = [ring(size, 4, a, b) / on_four[size] - 1 for size in HELD_OUT]
    print(f"errors for 4 ranks, with α and β from {name}:", end=" ")
    print(", ".join(f"{100 * error:+.0f}" for error in errors), "%")

# %% [markdown]
# ## From an all-reduce to a training step
#
# Now a cluster with one GPU per rank: 20 µs latency, 10 GB per second, 100 million parameters (400
# MB of gradients), and 200 ms of computing for a rank's batch, a third of it forward. A rank's
# batch stays the same for any N. The *speed-up* is the number of samples per second with N ranks,
# divided by that with one; ideally N. A bucket is sent when its gradients are ready *and* the
# previous one has arrived:

# %%
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cluster:
    """The numbers that determine how long a step takes."""

    alpha: float = 20e-6  # seconds
    beta: float = 1 / 10e9  # seconds per byte
    gradients: float = 400e6  # bytes
    computing: float = 0.2  # seconds in a step, on each rank


def step_seconds(cluster: Cluster, ranks: int, buckets: int, all_reduce=ring) -> float:
    """Return the seconds of a step that sends its gradients in buckets during backward."""
    forward, backward = cluster.computing / 3, cluster.computing * 2 / 3
    size, arrived = cluster.gradients / buckets, 0.0
    for number in range(1, buckets + 1):
        ready = forward + backward * number / buckets
        arrived = max(ready, arrived) + all_reduce(size, ranks, cluster.alpha, cluster.beta)
    return arrived


for buckets in [1, 16]:
    seconds = step_seconds(Cluster(), 8, buckets)
    speed_up = 8 * Cluster().computing / seconds
    print(f"8 ranks, buckets: {buckets:2}, a step takes {1000 * seconds:.0f} ms,", end=" ")
    print(f"the speed-up is {speed_up:.1f}")

# %% [markdown]
# > **Predict, then run.** With 8 ranks, 16 buckets are clearly faster. Which of the two is faster
# > with 1,024 ranks?
#
# <details><summary>Answer</summary>
#
# One bucket. Around a ring of 1,024 ranks each bucket makes 2,046 steps of 20 µs, 41 ms. With its
# bytes it takes 46 ms, and 16 of them 735 ms, which a backward of 133 ms can't hide. Libraries
# therefore use *trees*, too: ranks add up in pairs, then in pairs of pairs, and ten levels are
# enough for 1,024 ranks.
#
# </details>

# %%
import math

from pictures_costs import speed_ups


def tree(size: float, ranks: int, alpha: float, beta: float) -> float:
    """Return the seconds of an all-reduce through a tree, in small pieces."""
    levels = math.ceil(math.log2(ranks))
    return 2 * levels * alpha + (2 * size * beta if ranks > 1 else 0.0)


RANKS = [2**power for power in range(11)]
KINDS = {
    "ring, 1 bucket": (1, ring),
    "ring, 16 buckets": (16, ring),
    "tree, 16 buckets": (16, tree),
}


def same_batch_per_rank(cluster: Cluster) -> dict[str, list[float]]:
    """Return the speed-ups for 1 to 1,024 ranks, if each rank's batch stays the same."""
    return {
        name: [ranks * cluster.computing / step_seconds(cluster, ranks, *kind) for ranks in RANKS]
        for name, kind in KINDS.items()
    }


curves = same_batch_per_rank(Cluster())
for name, values in curves.items():
    print(f"{name:>16}:", end="")
    for ranks in [8, 64, 1024]:
        print(f"  {values[RANKS.index(ranks)]:6.1f} with {ranks:,} ranks", end="")
    print()
speed_ups(RANKS, curves, "16 buckets help until the ring's latency is too high")

# %% [markdown]
# The *efficiency*, speed-up ÷ N, is the share of the time in which the GPUs compute. Now try other
# clusters:
#
# - At which latency does the ring with 16 buckets stay close to the tree, up to 1,024 ranks?
# - With 1 GB per second, does it still matter whether you use a ring or a tree?
# - Which curves does a larger batch per rank improve?

# %%
from controls import choice, explore


def on_a_cluster(gigabytes: int, latency: int, parameters: int, computing: int):
    """Draw the speed-ups on a cluster with these numbers."""
    cluster = Cluster(latency / 1e6, 1 / (1e9 * gigabytes), 4e6 * parameters, computing / 1e3)
    curves = same_batch_per_rank(cluster)
    best = max(values[-1] for values in curves.values()) / RANKS[-1]
    title = f"{gigabytes} GB/s and {latency} µs: 1,024 ranks reach {best:.0%} at best"
    return speed_ups(RANKS, curves, title)


explore(
    on_a_cluster,
    gigabytes=choice("GB per second", 10, [1, 3, 10, 25, 50, 100, 400]),
    latency=choice("latency in µs", 5, [1, 2, 5, 10, 20, 50, 100]),
    parameters=choice("million parameters", 100, [10, 30, 100, 300, 1000, 3000]),
    computing=choice("computing in ms", 200, [20, 50, 100, 200, 500, 1000, 2000]),
)

# %% [markdown]
# ## More ranks for the same global batch
#
# Notebook 9 showed that a batch can be too large for efficient learning. So fix the *global*
# batch: 4,096 samples, for which one rank needs 128 × 200 ms = 25.6 s. The gradients stay as large
# as before.
#
# > **Predict, then run.** With more and more ranks, can the speed-up become arbitrarily large?
#
# <details><summary>Answer</summary>
#
# No. Each rank must send nearly twice the gradients, 800 MB at 10 GB per second, 80 ms. So the
# speed-up stays below 25.6 ÷ 0.08 = 320. With 16 buckets around the ring it even falls: each rank
# adds two more steps of latency.
#
# </details>

# %%
whole = 128 * Cluster().computing
fixed = {
    name: [
        whole / step_seconds(replace(Cluster(), computing=whole / ranks), ranks, *kind)
        for ranks in RANKS
    ]
    for name, kind in KINDS.items()
}
limit = whole / (2 * Cluster().gradients * Cluster().beta)
speed_ups(RANKS, fixed, "With a fixed global batch the speed-up has a limit", limit)

# %% [markdown]
# ## Limits of the formula
#
# > **Predict, then run.** Computing takes 200 ms with a standard deviation of 5 %. How much longer
# > does a step take with 1,024 ranks than with one?
#
# <details><summary>Answer</summary>
#
# About 16 %. The slowest of 1,024 ranks is about 32 ms late in each step, and all others wait for
# it.
#
# </details>

# %%
generator = np.random.default_rng(seed=0)
for ranks in [1, 8, 64, 1024]:
    computing = generator.normal(200, 10, size=(1000, ranks))  # ms: 1,000 steps on each rank
    slowest = computing.max(axis=1).mean()
    print(f"N = {ranks:>5,}: {slowest:.0f} ms")

# %% [markdown]
# The formula also leaves out that ranks on one machine communicate faster, that other jobs share
# the network, and that data, evaluation and checkpoints take time. So estimate first, measure with
# a few ranks, and look for the reason if they differ by a factor of two. `gradsync scale` does all
# of this in one command.
#
# ## What to remember
#
# - A collective has a latency and a time for its bytes, so a few large messages are faster than
#   many small ones.
# - Measure in turns, many times, and keep the minimum or the median.
# - Test a formula with sizes that were not used for the fit, on the machine where you need it.
# - The ring's latency grows with N, a tree's with log₂ N. With a fixed global batch the speed-up
#   has a limit.
#
# **Next:** [13. What PyTorch does for you](13_what_pytorch_does.ipynb)
