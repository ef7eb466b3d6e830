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
# # 6. Buckets and overlap
#
# So far the ranks computed first and communicated afterwards. Here they do both at the same time.
# You record *timelines* of real ranks. They show when each rank computed, when it waited, and which
# collectives were running.
#
# - **Afterwards you can** read a timeline, explain why gradients are sent in buckets, and write
#   `BucketedGradientAverager`.
# - **Time:** 20 minutes. The exercise is the longest of phase 2: plan an hour or two.
# - **You need:** averaging gradients (notebook [4](04_averaging_gradients.ipynb)) and reading a
#   deadlock (notebook [5](05_deadlocks.ipynb)).

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
from collections.abc import Iterator
from contextlib import contextmanager

import pictures_06
import torch
from ipywidgets import interact
from torch import nn

from gradsync.notebook import check

_ = torch.manual_seed(0)

# %% [markdown]
# ## When is a gradient ready?
#
# Backward goes through the layers from the last one to the first. Does autograd finish all
# gradients at the end, or one after another? PyTorch can show it. A *hook* is a function that is
# called when something happens. This one is called when the gradient of a parameter is complete.
#
# > **Predict, then run.** In which order will the names be printed?
#
# <details><summary>Answer</summary>
#
# `last`, `middle`, `first`: the order of backward. When `last` is ready, the work for the other two
# has not begun yet.
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
# So the gradient of the last layer is ready early, but is sent late if all ranks communicate only
# after backward. The idea of this notebook: **send it while backward works on the other layers.**
#
# ## A simulated backward
#
# We use two ranks and a model with eight layers. Two things are simulated:
#
# - the gradient of a layer is a tensor of 4 MB (one million numbers),
# - the backward of a layer is a wait of 10 ms.
#
# Waiting is a good model of a GPU: while the GPU computes, the computer's processor is free for
# other work, such as sending.

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
# > **Predict, then run.** `--timeline` draws what each rank does. Backward takes 8 × 10 ms. What
# > will you see after these 80 ms? What do the ranks compute in that time?
#
# <details><summary>Answer</summary>
#
# Eight collectives, one after another. During these the ranks compute nothing: they wait. The
# network was idle for the first 80 ms, and the ranks are idle for the rest.
#
# </details>
#
# The `barrier` makes both ranks begin at the same moment.

# %%
# %%ranks 2 --timeline
dist.barrier()
average_after_backward()

# %% [markdown]
# A filled bar in the upper row of a rank means that it computes. A dashed bar means that it waits.
# The thin bars below are running collectives.
#
# ## Sending during backward
#
# With `async_op=True` a collective only *begins*. The call returns at once, with a *handle*. Later,
# `handle.wait()` waits until the collective is complete. Until then do not read the tensor, and do
# not write to it.
#
# > **Predict, then run.** Each layer's gradient is sent as soon as it is ready. How long do the
# > ranks wait after backward?
#
# <details><summary>Answer</summary>
#
# About as long as *one* message takes. Seven of the eight messages are sent while backward still
# runs. Only the message of the first layer can't be hidden: it becomes ready when backward ends.
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
# The next cell measures both ways in milliseconds. Each runs ten times, and we keep the shortest
# time: in the other runs, another program may have slowed down the ranks.


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
# Now backward does not wait. It multiplies matrices, which keeps a processor core busy for about
# 10 ms. This is what happens on a laptop without a GPU.
#
# > **Predict, then run.** Now the same processor computes *and* moves the bytes. Can overlap still
# > hide the communication?
#
# <details><summary>Answer</summary>
#
# It hides less. While messages are sent, backward gets slower, because copying and adding their
# bytes needs the processor, too. Overlap can only hide communication if a processor is idle.
# How much it hides depends on your machine: on the number of cores, and on the other programs.
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
pictures_06.idle_or_busy(measured[0], busy[0])

# %% [markdown]
# ## Why not one message for each parameter?
#
# A real model has hundreds of parameters, and many are small: a bias has a few numbers. Every
# message has a fixed cost, whatever its size. It is called *latency*.
#
# > **Predict, then run.** The next cell sends the same 4 MB as 1 message, as 10, as 100 and as 500
# > messages. How much longer do 500 messages take than one?
#
# <details><summary>Answer</summary>
#
# Many times as long, as the output shows. The number of bytes is the same. The difference is the
# latency of 500 messages.
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
# So two goals contradict each other:
#
# - *few* messages, because each has its latency,
# - *many* messages, so that the first one can be sent early and the last one is small.
#
# The compromise is a **bucket**: several gradients, one after another in one flat tensor, that are
# sent as one message.
#
# ### How many buckets?
#
# A small calculation finds the best number. Backward computes 40 gradients, one each millisecond.
# All bytes together take 28 ms to send, and each message takes 1 ms more. A message can be sent
# when its bucket is full and the previous message has arrived.


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
# > **Predict, then run.** The latency is now 3 ms instead of 1 ms. Does the best number of buckets
# > go up or down?
#
# <details><summary>Answer</summary>
#
# Down. Each message is more expensive, so fewer of them are better. Try it with the slider.
#
# </details>


# %%
def best_number(latency=1.0, all_bytes=28.0):
    times = {k: step_milliseconds(k, latency, all_bytes) for k in range(1, 41)}
    after = 40.0 + latency + all_bytes  # one message after backward
    pictures_06.bucket_curve(times, after)


interact(best_number, latency=(0.1, 4.0, 0.1), all_bytes=(4.0, 60.0, 4.0))
best_number()  # a static page shows the sliders' first position

# %% [markdown]
# In practice you don't choose the number of buckets, but their largest size, the *cap*. PyTorch's
# default is 25 MiB. Parameters go into buckets in reverse order, because that is approximately the
# order in which backward computes their gradients.

# %%
pictures_06.filling()

# %% [markdown]
# > **Predict.** A model has parameters of 1, 5, 2, 1 and 2 MiB, in this order. The cap is 4 MiB.
# > Which buckets does this give?
#
# <details><summary>Answer</summary>
#
# Go backwards: 2 and 1 make 3 MiB. With the next parameter, of 2 MiB, the bucket would have 5 MiB,
# so this parameter begins a new bucket. The parameter of 5 MiB is larger than the cap and gets a
# separate bucket. The last bucket contains the first parameter, of 1 MiB. So: {2, 1}, {2}, {5},
# {1}.
#
# </details>
#
# ## Three traps
#
# ### 1. The order in which buckets are sent
#
# The simple rule is: send a bucket when it is full. Suppose that no sample of rank 1 uses the
# parameters in bucket 1, so their gradients never become ready on rank 1. Then rank 1 sends bucket
# 0, then bucket 2, and at the end bucket 1. All buckets have the same size.
#
# > **Predict, then run.** Rank 0 has 1, 2 and 3 in its three buckets, and rank 1 has 10, 20 and 30.
# > The correct sums are 11, 22 and 33. Is there a deadlock? What will rank 0 have in bucket 1?
#
# <details><summary>Answer</summary>
#
# There is no deadlock: each rank makes three calls with tensors of the same size. But rank 0's
# bucket 1 is added to rank 1's bucket 2, and the sum is 2 + 30 = 32. There is no error message.
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
# So the *order* of the buckets is fixed, the same on all ranks. Only the *time* at which a bucket
# is sent may differ. A bucket whose gradients never become ready must be sent, too, at the latest
# when backward is over.
#
# ### 2. A tensor that is still being sent
#
# > **Predict, then run.** Both ranks have ones, so the sum is 2. The cell reads the last number
# > before `wait`, and again after it. Which two numbers do you see?
#
# <details><summary>Answer</summary>
#
# Most likely 1 and 2: the message of 64 MB was not complete when the cell read it. With a small
# tensor you may see 2 and 2: the mistake has an effect only sometimes. It is also a mistake to
# write to the tensor before `wait`.
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
# ### 3. One parameter with two names
#
# In some models two layers share one weight. Such a weight is called *tied*. Its gradient has two
# parts, one from each use.
#
# > **Predict, then run.** The weight below is used twice. How often is the hook called, and what is
# > the gradient at that moment?
#
# <details><summary>Answer</summary>
#
# Once, when both parts have been added: 1 · 3 + 1 · 5 = 8. (The model computes 3w + 5w.) So with
# this kind of hook a tied weight needs no special code, as long as it is in one bucket only.
#
# </details>

# %%
tied = nn.Parameter(torch.tensor(1.0))
tied.register_post_accumulate_grad_hook(lambda param: print("hook: gradient", param.grad.item()))

(3 * tied + 5 * tied).backward()

# %% [markdown]
# ## Exercise: `BucketedGradientAverager`
#
# Write a class that averages gradients in buckets while backward runs. A program creates one object
# for a model. In each step, backward starts to send the buckets as they become full, and `finish()`
# waits until every gradient is the mean over ranks. Inside `no_sync()` backward only accumulates,
# and nothing is sent (notebook 7 needs this). The result is the same as with `average_gradients`:
# ranks that did not use a parameter contribute zeros, and frozen parameters are ignored.
#
# We suggest three steps. First, fill the buckets and look at them. Second, send all of them in
# `finish()`. Third, send them earlier, from hooks. Check after each step.
#
# Read [Buckets and overlap](../phase2/GUIDELINES.md#buckets-and-overlap). For a hint, run
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
# - Backward finishes the gradients of the last layer first. They can be sent while it works on the
#   others.
# - Overlap hides communication behind computation, if a processor is free to move the bytes.
# - Few messages save latency, and early messages save waiting time. Buckets are the compromise.
# - The order of the buckets is the same on all ranks, whichever parameters their samples use.
# - Do not read or change a tensor that is being sent until `wait` has returned.
#
# ## Next
#
# [7. Accumulation](07_accumulation.ipynb): several backward passes, one message, and how large
# batches affect learning.
