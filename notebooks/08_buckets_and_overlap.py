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
# # 8. Buckets and overlap
#
# So far the ranks computed first and communicated afterwards. Here they do both at once, and you
# see it in *timelines* of real ranks.
#
# - **Time:** 20 minutes. The exercise is the longest of phase 2: plan an hour or two.
# - **You need:** averaging gradients (notebook [4](04_averaging_gradients.ipynb)) and reading a
#   deadlock (notebook [5](05_deadlocks.ipynb)).
# - **Reference:** [Buckets and overlap](../phase2/GUIDELINES.md#buckets-and-overlap)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %%
from collections.abc import Iterator
from contextlib import contextmanager

import pictures_buckets
import torch
from ipywidgets import interact
from torch import nn

from gradsync.notebook import check

_ = torch.manual_seed(0)

# %% [markdown]
# ## When is a gradient ready?
#
# A *hook* is a function that is called when something happens, here when the gradient of a
# parameter is complete.
#
# > **Predict, then run.** In which order will the names be printed?
#
# <details><summary>Answer</summary>
#
# `last`, `middle`, `first`: the order of backward. When `last` is ready, the work for the others
# has not begun.
#
# </details>

# %%
model = nn.Sequential()
for name in ("first", "middle", "last"):
    model.add_module(name, nn.Linear(4, 4, bias=False))

for name, param in model.named_parameters():
    param.register_post_accumulate_grad_hook(lambda _, name=name: print(name, "is ready"))

model(torch.randn(8, 4)).sum().backward()

# %% [markdown]
# So the last layer's gradient waits for nothing, except for our decision to communicate only after
# backward.
#
# ## A simulated backward
#
# Two ranks, eight layers. A layer's gradient is a tensor of 4 MB, and its backward is a wait of 10
# ms. Waiting is a good model of a GPU: while it computes, the computer's processor is free to
# send.

# %%
# %%ranks 2
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
LAYERS, MB = 8, 250_000  # a megabyte is 250,000 numbers of 4 bytes
gradients = [torch.ones(4 * MB) for _ in range(LAYERS)]


def backward_of_a_layer(running=()):
    """Wait 10 ms, as for a GPU; poll, so that the timeline records when messages arrive."""
    end = time.perf_counter() + 0.010
    while time.perf_counter() < end:
        time.sleep(0.0005)
        for handle in running:
            handle.is_completed()


def average_after_backward():
    for _ in reversed(range(LAYERS)):
        backward_of_a_layer()
    for layer in reversed(range(LAYERS)):
        dist.all_reduce(gradients[layer])


average_after_backward()  # the first messages are slow: connections are opened

# %% [markdown]
# > **Predict, then run.** Backward takes 8 × 10 ms. What will the timeline show after that? What
# > do the ranks compute in that time?
#
# <details><summary>Answer</summary>
#
# Eight collectives, one after another, during which the ranks wait. The network was idle for 80
# ms, and now the ranks are.
#
# </details>

# %%
# %%ranks 2 --timeline
dist.barrier()
average_after_backward()

# %% [markdown]
# A filled bar in the upper row of a rank means that it computes, a dashed one that it waits. The
# thin bars below are running collectives.
#
# ## Sending during backward
#
# With `async_op=True` a collective only *begins*, and the call returns a *handle*. `handle.wait()`
# waits until it is complete; until then, leave the tensor alone.
#
# > **Predict, then run.** Each layer's gradient is sent as soon as it is ready. How long do the
# > ranks wait after backward?
#
# <details><summary>Answer</summary>
#
# About as long as *one* message takes. Only the first layer's can't be hidden: it becomes ready
# when backward ends.
#
# </details>


# %%
# %%ranks 2
def average_during_backward():
    handles = []
    for layer in reversed(range(LAYERS)):
        backward_of_a_layer(handles)
        handles.append(dist.all_reduce(gradients[layer], async_op=True))
    for handle in handles:
        handle.wait()


# %%
# %%ranks 2 --timeline
dist.barrier()
average_during_backward()

# %% [markdown]
# In milliseconds, the shortest of ten runs each, since other programs can only make a run longer:


# %%
# %%ranks 2
def milliseconds(work, repeats=10):
    """Return the shortest time of a function that all ranks run together."""
    times = []
    for _ in range(repeats):
        dist.barrier()
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


def only_backward():
    for _ in range(LAYERS):
        backward_of_a_layer()


measured = {
    "backward alone": milliseconds(only_backward),
    "averaging after backward": milliseconds(average_after_backward),
    "averaging during backward": milliseconds(average_during_backward),
}

# %%
# %ranks pull measured
for name, ms in measured[0].items():
    print(f"{name:28}{ms:6.1f} ms")

# %% [markdown]
# ### What if the processor itself computes?
#
# Now backward multiplies matrices for about 10 ms per layer, as on a laptop without a GPU.
#
# > **Predict, then run.** The same processor computes *and* moves the bytes. Can overlap still
# > hide the communication?
#
# <details><summary>Answer</summary>
#
# It hides less if all cores compute: while messages are sent, backward gets slower, because
# copying and adding their bytes needs a processor, too. How much less depends on your cores and on
# what else runs on them.
#
# </details>

# %%
# %%ranks 2
matrix = torch.rand(300, 300)
seconds = time.perf_counter()
for _ in range(50):
    matrix @ matrix
products = max(1, round(0.010 * 50 / (time.perf_counter() - seconds)))  # they take 10 ms


def backward_of_a_layer(_=()):
    """Compute for about 10 ms on this processor."""
    for _ in range(products):
        matrix @ matrix


busy = {
    "backward alone": milliseconds(only_backward),
    "averaging after backward": milliseconds(average_after_backward),
    "averaging during backward": milliseconds(average_during_backward),
}

# %%
# %ranks pull busy
pictures_buckets.idle_or_busy(measured[0], busy[0])

# %% [markdown]
# ## Why not one message for each parameter?
#
# A real model has hundreds of parameters, many of them small, and every message has its *latency*.
#
# > **Predict, then run.** The next cell sends the same 4 MB as 1, 10, 100 and 500 messages. How
# > much longer do 500 take than one?
#
# <details><summary>Answer</summary>
#
# Many times as long, although the bytes are the same.
#
# </details>

# %%
# %%ranks 2
for pieces in (1, 10, 100, 500):
    parts = torch.ones(4 * MB).chunk(pieces)

    def send_all(parts=parts):
        for part in parts:
            dist.all_reduce(part)

    ms = milliseconds(send_all, repeats=3)
    if rank == 0:
        print(f"{pieces:4} x {4000 / pieces:4.0f} kB: {ms:7.1f} ms")

# %% [markdown]
# *Few* messages save latency; *many* let the first be sent early and the last be small. The
# compromise is a **bucket**: several gradients in one flat tensor, sent as one message. In this
# calculation backward computes 40 gradients, one each millisecond, all bytes take 28 ms, each
# message 1 ms more, and a bucket is sent when it is full and the previous one has arrived.


# %%
def step_milliseconds(buckets, latency=1.0, all_bytes=28.0, backward=40.0):
    """Return the time from the start of backward until the last of equal buckets arrives."""
    arrived = 0.0
    for number in range(1, buckets + 1):
        full = backward * number / buckets
        arrived = max(full, arrived) + latency + all_bytes / buckets
    return arrived


for buckets in (1, 2, 4, 8, 40):
    print(f"{buckets:3} buckets: {step_milliseconds(buckets):5.1f} ms")

# %% [markdown]
# > **Predict, then run.** The latency is now 3 ms. Does the best number of buckets go up or down?
#
# <details><summary>Answer</summary>
#
# Down, since each message is more expensive. Try it with the slider.
#
# </details>


# %%
def best_number(latency=1.0, all_bytes=28.0):
    times = {k: step_milliseconds(k, latency, all_bytes) for k in range(1, 41)}
    after = 40.0 + latency + all_bytes  # one message after backward
    pictures_buckets.bucket_curve(times, after)


interact(best_number, latency=(0.1, 4.0, 0.1), all_bytes=(4.0, 60.0, 4.0))
best_number()  # a static page shows the sliders' first position

# %% [markdown]
# In practice you choose the *cap*, the largest size of a bucket; PyTorch's default is 25 MiB.
# Parameters go into buckets in reverse order, approximately the order in which backward computes
# their gradients.

# %%
pictures_buckets.filling()

# %% [markdown]
# > **Predict.** A model has parameters of 1, 5, 2, 1 and 2 MiB, in this order. The cap is 4 MiB.
# > Which buckets does this give?
#
# <details><summary>Answer</summary>
#
# Backwards: {2, 1}, {2}, {5}, {1}. A third parameter of 2 MiB would make the first bucket 5 MiB.
# The parameter of 5 MiB is larger than the cap and gets its own bucket.
#
# </details>
#
# ## Three traps
#
# **1. The order of sending.** The simple rule sends a bucket when it is full. Suppose no sample of
# rank 1 uses bucket 1, so rank 1 sends bucket 0, then 2, and 1 at the end. All have the same size.
#
# > **Predict, then run.** Rank 0 has 1, 2 and 3 in its buckets, rank 1 has 10, 20 and 30. The
# > correct sums are 11, 22 and 33. Is there a deadlock? What will rank 0 have in bucket 1?
#
# <details><summary>Answer</summary>
#
# No deadlock: each rank makes three calls of the same size. But rank 0's bucket 1 is added to rank
# 1's bucket 2, and the sum is 2 + 30 = 32, without an error.
#
# </details>

# %%
# %%ranks 2
buckets = [torch.full((4,), value * 10.0**rank) for value in (1, 2, 3)]
order = [0, 1, 2] if rank == 0 else [0, 2, 1]

handles = [dist.all_reduce(buckets[number], async_op=True) for number in order]
for handle in handles:
    handle.wait()

[bucket[0].item() for bucket in buckets]

# %% [markdown]
# So the *order* of buckets is fixed, and only the *time* of sending may differ. A bucket that
# never becomes full is sent at the end.
#
# **2. A tensor that is still being sent.**
#
# > **Predict, then run.** Both ranks have ones, so the sum is 2. The cell reads the last number
# > before `wait` and after it. Which two numbers do you see?
#
# <details><summary>Answer</summary>
#
# Most likely 1 and 2, since the message of 64 MB was under way. With a small tensor you may see 2
# and 2: the mistake shows only sometimes. Writing before `wait` is a mistake, too.
#
# </details>

# %%
# %%ranks 2
large = torch.ones(64 * MB)
handle = dist.all_reduce(large, async_op=True)

before = large[-1].item()
handle.wait()
print(f"before wait: {before}, after wait: {large[-1].item()}")

# %% [markdown]
# **3. One parameter with two names.** Two layers may share one *tied* weight, whose gradient has a
# part from each use.
#
# > **Predict, then run.** How often is the hook called, and what is the gradient at that moment?
#
# <details><summary>Answer</summary>
#
# Once, when both parts have been added: 3 + 5 = 8. With this kind of hook a tied weight needs no
# special code, as long as it is in one bucket.
#
# </details>

# %%
tied = nn.Parameter(torch.tensor(1.0))
tied.register_post_accumulate_grad_hook(lambda param: print("hook: gradient", param.grad.item()))

(3 * tied + 5 * tied).backward()

# %% [markdown]
# ## Exercise: `BucketedGradientAverager`
#
# Average gradients in buckets while backward runs. Backward starts to send buckets as they become
# full, `finish()` waits until every gradient is the mean, and inside `no_sync()` nothing is sent.
# Ranks that did not use a parameter contribute zeros.
#
# Three steps work well, with a check after each: fill the buckets and look at them; send all of
# them in `finish()`; send them earlier, from hooks.
#
# Reference: [Buckets and overlap](../phase2/GUIDELINES.md#buckets-and-overlap). For a hint, run
# `!gradsync hint BucketedGradientAverager` in a new cell.


# %%
class BucketedGradientAverager:
    """Averages gradients over ranks in buckets, while backward computes the next ones."""

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        raise NotImplementedError("phase2/BucketedGradientAverager")  # write this

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside the block, backward only accumulates gradients and sends nothing."""
        raise NotImplementedError("phase2/BucketedGradientAverager")  # write this

    def finish(self) -> None:
        """Wait until every gradient is the mean over ranks."""
        raise NotImplementedError("phase2/BucketedGradientAverager")  # write this


# %%
check("BucketedGradientAverager", BucketedGradientAverager)

# %% [markdown]
# ## What to remember
#
# - Backward finishes the last layer's gradients first, so they can be sent while it goes on.
# - Overlap hides communication if a processor is free to move the bytes.
# - Few messages save latency, early messages save waiting. Buckets are the compromise.
# - The order of the buckets is the same on all ranks, whichever parameters their samples use.
#
# **Next:** [9. Accumulation](09_accumulation.ipynb)
