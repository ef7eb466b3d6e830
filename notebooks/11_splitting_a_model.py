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
# # 11. Splitting a model: tensor parallelism and pipelines
#
# In data parallelism every rank computes with the complete model. What if it is too large? Here
# each rank keeps a part of each layer, or some of the layers.
#
# - **Time:** 20 minutes, and two hours for the four exercises. The two parts are independent.
# - **You need:** collectives, and how `backward` fills `.grad`.
# - **Reference:** [Tensor parallelism](../phase2/GUIDELINES.md#tensor-parallelism) and
#   [Pipelines](../phase2/GUIDELINES.md#pipelines)

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
from pictures_splitting import draw_cuts, draw_schedules
from schedules import gpipe, one_forward_one_backward
from torch import nn

from gradsync.notebook import check

# %% [markdown]
# ## Part 1: tensor parallelism
#
# A linear layer's weight has one row per output and one column per input. Take two layers with 2
# inputs, 4 hidden values and 2 outputs, and cut the first weight into rows, the second into
# columns:

# %%
first = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
second = torch.tensor([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 3.0, -1.0]])
draw_cuts(first, second)

# %% [markdown]
# > **Predict, then run.** The input is (1, 2), the same on both ranks. Compute by hand what each
# > rank gets from its two parts. How do you get the output of the undivided layers?
#
# <details><summary>Answer</summary>
#
# Rank 0 has the hidden values (3, 2), which its columns turn into (7, 2). Rank 1 has (2, 1) and
# gets (1, 5). The *sum* is (8, 7). Between the two layers no message is needed.
#
# </details>

# %%
x = torch.tensor([1.0, 2.0])
terms = []
for number in range(2):  # each pass of this loop simulates a rank
    own = slice(2 * number, 2 * number + 2)
    hidden = first[own] @ x
    terms.append(second[:, own] @ hidden)
    print(f"rank {number}: hidden {hidden.tolist()}, term {terms[-1].tolist()}")
print("sum:         ", sum(terms).tolist())
print("undivided:   ", (second @ (first @ x)).tolist())

# %% [markdown]
# The paper that introduced the pair writes weights transposed, hence the names:
# `ColumnParallelLinear` keeps **rows** and sends nothing in forward, `RowParallelLinear` keeps
# **columns** and sums over ranks.
#
# > **Predict, then run.** May each rank apply a ReLU to its own hidden values? And to its term of
# > the output?
#
# <details><summary>Answer</summary>
#
# On hidden values, yes: each is complete on one rank. On terms, no: 3 + (−2) is 1, but relu(3) +
# relu(−2) is 3.
#
# </details>

# %%
terms = torch.tensor([3.0, -2.0])
print("sum, then ReLU:", torch.relu(terms.sum()).item())
print("ReLU, then sum:", torch.relu(terms).sum().item())

# %% [markdown]
# The bias of the second layer has the same problem: if each rank adds it to its term, the sum
# contains it N times, and a test on one rank finds nothing.
#
# ### Backward needs a message, too
#
# Autograd works inside one process and ignores that another rank used the same input. Here each
# rank has one row of a weight, 2 and 5. The undivided layer's output is (2x, 5x), the loss the sum
# of both.
#
# > **Predict, then run.** What is the gradient of x for the undivided layer? What does each rank
# > have in `x.grad`?
#
# <details><summary>Answer</summary>
#
# The undivided layer has 7. Rank 0 has 2 and rank 1 has 5, each the contribution of its own
# output. So the *column* layer, which sends nothing in forward, sums over ranks in backward.
#
# </details>

# %%
# %%ranks 2
import torch

x = torch.tensor(1.0, requires_grad=True)
weight = torch.tensor([2.0, 5.0], requires_grad=True)
output = weight[rank] * x  # this rank's part of the output
output.backward()
print(f"x.grad = {x.grad:.0f}, weight.grad = {weight.grad[rank]:.0f}")

# %% [markdown]
# `weight.grad` is right on both ranks. The layer itself learns correctly, and only the layers
# *before* it get too small a gradient, so test the gradient of its input. The *row* layer is the
# mirror image: a sum in forward, nothing in backward.
#
# To define a different backward, write a `torch.autograd.Function`. This one has nothing to do
# with ranks: it returns the values unchanged, and limits the gradient to −1 … 1.


# %%
class LimitGradient(torch.autograd.Function):
    """Return the inputs; in backward, limit their gradient to -1..1."""

    @staticmethod
    def forward(_context, inputs):
        """Return the inputs unchanged, as a new tensor."""
        return inputs.view_as(inputs)

    @staticmethod
    def backward(_context, gradient):
        """Receive the gradient of forward's output; return the gradient of its input."""
        return gradient.clamp(-1, 1)


values = torch.tensor([0.25, 2.0, 3.0], requires_grad=True)
(LimitGradient.apply(values) ** 2).sum().backward()
print("without a limit:", (2 * values).tolist())
print("with the limit: ", values.grad.tolist())

# %% [markdown]
# ### Exercises: `ColumnParallelLinear` and `RowParallelLinear`
#
# Write both layers; outputs and all gradients are those of `nn.Linear`, on every rank. Decide what
# each direction does for the input of one layer and for the output of the other.
#
# Reference: [Tensor parallelism](../phase2/GUIDELINES.md#tensor-parallelism). For a hint, run
# `!gradsync hint ColumnParallelLinear` in a new cell.


# %%
class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are split over the ranks: each keeps rows of the weight."""

    def __init__(self, in_features, out_features, bias=True, gather_output=False):
        raise NotImplementedError("phase2/ColumnParallelLinear")  # write this; call super() first

    def forward(self, inputs):
        """Map inputs (..., in_features) to this rank's outputs, or to all of them."""
        raise NotImplementedError("phase2/ColumnParallelLinear")  # write this


# %%
check("ColumnParallelLinear", ColumnParallelLinear)


# %%
class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are split over the ranks: each keeps columns of the weight."""

    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True):
        raise NotImplementedError("phase2/RowParallelLinear")  # write this; call super() first

    def forward(self, inputs):
        """Map inputs, this rank's part or all of them, to outputs (..., out_features)."""
        raise NotImplementedError("phase2/RowParallelLinear")  # write this


# %%
check("RowParallelLinear", RowParallelLinear)

# %% [markdown]
# ### Exercise: `load_full_linear`
#
# Copy this rank's part of a complete layer into yours. As in notebook 3, an optimizer may already
# refer to the parameters. The check uses your two layers.
#
# Reference: [Tensor parallelism](../phase2/GUIDELINES.md#tensor-parallelism). For a hint, run
# `!gradsync hint load_full_linear` in a new cell.


# %%
def load_full_linear(layer, weight, bias):
    """Copy this rank's part of a complete layer's weight and bias into `layer`."""
    raise NotImplementedError("phase2/load_full_linear")  # write this


# %%
check("load_full_linear", load_full_linear)

# %% [markdown]
# ### What it costs
#
# Data parallelism sends gradients, as many bytes as the weights. Tensor parallelism sends
# activations, in forward and in backward, so it grows with the batch. A row is one sample, or one
# word of a text.
#
# > **Predict, then run.** A pair of layers 512 → 2,048 → 512. Which of the two reduces fewer bytes
# > with 64 rows, and which with 32,768?
#
# <details><summary>Answer</summary>
#
# With 64 rows tensor parallelism, by a factor of 32; with 32,768 data parallelism, by 16. They are
# equal at 2,048 rows, the width of the hidden layer.
#
# </details>

# %%
weights = 2 * 512 * 2048 * 4  # bytes
print("data parallelism or tensor parallelism:")
for rows in (64, 2048, 32_768):
    activations = 2 * rows * 512 * 4  # bytes, forward and backward
    print(f"{rows:6,} rows: {weights / 1e6:.1f} MB or {activations / 1e6:.1f} MB")

# %% [markdown]
# ## Part 2: pipelines
#
# Each rank has some complete layers, a **stage**, and sends its outputs to the next. But rank 1
# can't start before rank 0 has sent something.
#
# > **Predict, then run.** Four ranks, four equal stages. The whole batch goes through in one
# > piece, forward and then backward. What share of the time does each rank wait? And in four
# > microbatches?
#
# <details><summary>Answer</summary>
#
# In one piece only one rank works at a time, so three quarters. In four microbatches 3/7 = 43 %.
# This waiting time is the **bubble**.
#
# </details>


# %%
def pipeline(stages, microbatches):
    """Draw the same batch in one piece and in microbatches."""
    return draw_schedules(
        {
            "one piece": gpipe(stages, 1, ticks=microbatches),
            f"{microbatches} microbatches": gpipe(stages, microbatches),
        }
    )


explore(
    pipeline, stages=slider("stages, N", 4, 2, 8), microbatches=slider("microbatches, m", 4, 2, 16)
)

# %% [markdown]
# Each number is a microbatch, and a tick is the forward of one. With N stages and m microbatches,
# forward takes m + N − 1 ticks, of which each rank works m:
#
# > bubble = (N − 1) / (m + N − 1)

# %%
print("      " + "".join(f"m = {m:<5}" for m in (1, 4, 16, 64)))
for n in (2, 4, 8):
    shares = [(n - 1) / (m + n - 1) for m in (1, 4, 16, 64)]
    print(f"N = {n} " + "".join(f"{share:<9.0%}" for share in shares))

# %% [markdown]
# ### A pipeline on real ranks
#
# Three ranks, forward only. Each needs 120 ms for the whole batch, and a sleep replaces the work.
# Instead of activations they send a counter.
#
# > **Predict, then run.** How long does the batch take in one piece? And in four parts of 30 ms?
#
# <details><summary>Answer</summary>
#
# 3 × 120 = 360 ms, and 4 + 3 − 1 = 6 ticks of 30 ms, 180 ms. Messages add a few milliseconds.
#
# </details>

# %%
# %%ranks 3
import time

import torch
import torch.distributed as dist


def work_through(parts):
    """Send a counter through all ranks, once for each part of the batch; return the seconds."""
    dist.barrier()  # all ranks begin together
    began = time.perf_counter()
    for _ in range(parts):
        counter = torch.zeros(1)
        if rank > 0:
            dist.recv(counter, rank - 1)
        time.sleep(0.120 / parts)  # the work
        counter += 1
        if rank < world_size - 1:
            dist.send(counter, rank + 1)
    dist.barrier()
    return time.perf_counter() - began


one_piece = work_through(1)

# %%
# %%ranks 3 --timeline
four_parts = work_through(4)
if rank == 0:
    print(f"in one piece: {one_piece:.2f} s, in four parts: {four_parts:.2f} s")

# %% [markdown]
# ### Backward through a cut
#
# A tensor that arrives in a message has no history. `detach` cuts a computation in the same way:
# stage 0 computes a = 3w, stage 1 the loss a². At w = 2, a is 6 and the loss 36.
#
# > **Predict, then run.** What is `w.grad` after `loss.backward()`?
#
# <details><summary>Answer</summary>
#
# `None`: backward stops at the cut. The gradient there is 2a = 12, and it exists only because
# `arrived` requires one. Stage 0 continues with `a.backward(gradient)`, which needs no loss, and
# gets 12 × 3 = 36.
#
# </details>

# %%
w = torch.tensor(2.0, requires_grad=True)
a = 3 * w  # stage 0

arrived = a.detach().requires_grad_()  # stage 1 would receive this
loss = arrived**2  # stage 1
loss.backward()
print("after stage 1's backward: w.grad =", w.grad, " arrived.grad =", arrived.grad.item())

gradient = arrived.grad.clone()  # stage 1 would send this back
a.backward(gradient)
print("after stage 0's backward: w.grad =", w.grad.item())

# %% [markdown]
# ### The order of messages
#
# All ranks run all forwards first, then all backwards: **GPipe**.
#
# > **Predict, then run.** There are two microbatches. Rank 1 expects both activations first. Rank
# > 0 sends one and waits for its gradient. Which rank waits for what?
#
# <details><summary>Answer</summary>
#
# Rank 0 for the first gradient, rank 1 for the second activation, both for a message that the
# other would send later: a deadlock.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 2
import torch
import torch.distributed as dist

activation, gradient = torch.ones(4), torch.ones(4)
if rank == 0:
    for _ in range(2):
        dist.send(activation, 1)
        dist.recv(gradient, 1)  # too early
else:
    for _ in range(2):
        dist.recv(activation, 0)
    for _ in range(2):
        dist.send(gradient, 0)

# %% [markdown]
# With GPipe a rank keeps the activations of *all* microbatches until backward begins. **1F1B**,
# one forward and one backward in turn, takes the same time and never keeps more than N. Look at
# rank 0 in tick 6:

# %%
draw_schedules({"GPipe": gpipe(3, 6), "1F1B": one_forward_one_backward(3, 6)})

# %% [markdown]
# ### Exercise: `pipeline_train_step`
#
# Take one GPipe step. Activations may have any shape and dtype, which the receiver does not know
# beforehand; microbatches may differ in size; gradients are those of the undivided model, still in
# `.grad` after the step; one rank works, too.
#
# Reference: [Pipelines](../phase2/GUIDELINES.md#pipelines). For a hint, run `!gradsync hint
# pipeline_train_step` in a new cell.


# %%
def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    """Take one optimizer step of a model whose stages are on the ranks; return the mean loss."""
    raise NotImplementedError("phase2/pipeline_train_step")  # write this


# %%
check("pipeline_train_step", pipeline_train_step)

# %% [markdown]
# ### What to remember
#
# - Rows, then columns: one sum in forward, after the second layer, and one in backward, before the
#   first.
# - A layer's own gradients can be right while the gradient of its input is wrong.
# - In a pipeline a rank waits (N − 1)/(m + N − 1) of the time.
# - Backward starts again at a cut, with the gradient that the next rank sends.
#
# **Next:** [12. What it costs](12_what_it_costs.ipynb)
