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
# # 8. Sharding, tensor parallel and pipelines
#
# In data parallelism every rank keeps the complete model. What if the model is too large for that?
# This notebook shows three ways to divide it: each rank keeps a part of the optimizer's state, a
# part of each layer, or some of the layers.
#
# - **Afterwards you can** compute how much memory a rank needs, cut a linear layer into parts, and
#   draw a pipeline's schedule. You write `ShardedOptimizer`, `ColumnParallelLinear`,
#   `RowParallelLinear`, `load_full_linear` and `pipeline_train_step`.
# - **Time:** 20 minutes, and more for the five exercises. The three parts are independent, so you
#   can study them on different days.
# - **You need:** collectives from [notebook 3](03_all_reduce.ipynb), and how `backward` fills
#   `.grad`.

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
from controls import explore, slider
from pictures_08 import draw_cuts, draw_memory, draw_schedules
from schedules_08 import gpipe, one_forward_one_backward
from torch import nn

from gradsync.notebook import check

# %% [markdown]
# # Part 1: the optimizer's state
#
# ## The memory that a rank needs
#
# The optimizer **Adam** keeps two numbers for each parameter: a running mean of its gradient, and
# one of its square.
# These numbers are the optimizer's **state**.
#
# > **Predict, then run.** The weights below are float32, so each takes 4 bytes. How many bytes does
# > Adam's state take for each weight? How many does the state of plain SGD take?
#
# <details><summary>Answer</summary>
#
# Adam's state takes 8 bytes per weight, twice as much as the weight itself. With the gradient that
# makes 16 bytes per parameter.
# Plain SGD has no state. (Adam also counts its steps, in one number for each tensor. The cell does
# not include it.)
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
# After the all-reduce all ranks have the same gradients. So all ranks compute the same state, and
# keep N copies of it.
# **ZeRO** is a method that removes these copies. Each parameter gets one rank as its *owner*, and
# only the owner keeps the state.
# This is stage 1. Stage 2 also divides the gradients among the ranks, and stage 3 the weights.
# Dividing data among ranks is called **sharding**.
#
# > **Predict, then run.** Eight ranks train with Adam. Without sharding each keeps 16 bytes per
# > parameter. How many bytes does each rank keep at stage 1? And at stage 3?
#
# <details><summary>Answer</summary>
#
# Stage 1: 4 for the weight, 4 for the gradient and 8 ÷ 8 = 1 for the state, so 9 bytes. Stage 3: 16
# ÷ 8 = 2 bytes.
# With very many ranks, stage 1 needs only a little more than 8 bytes.
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
# ## The owner of each parameter
#
# All ranks must choose the same owners without a message. So the rule may use only information that
# all ranks have: the parameters and their order.
#
# > **Predict, then run.** One simple rule gives the parameters to two ranks in turn: first to rank
# > 0, then to rank 1, and so on. How many elements does each rank get for the model below?
#
# <details><summary>Answer</summary>
#
# Each layer has a weight and then a bias. With this rule, rank 0 gets all weights and rank 1 gets
# all biases.
# The numbers of *parameters* are equal, but memory depends on the numbers of *elements*. A good
# rule uses the numbers of elements.
#
# </details>

# %%
model = nn.Sequential(nn.Linear(100, 200), nn.Linear(200, 200), nn.Linear(200, 100))
sizes = [param.numel() for param in model.parameters()]
print("elements of each parameter:", sizes)
print("in turn:   rank 0 owns", sum(sizes[0::2]), " rank 1 owns", sum(sizes[1::2]))
print("even part:", sum(sizes) // 2)

# %% [markdown]
# ## A step, and the messages after it
#
# Two ranks have the same two weights, both 1.0, and the same averaged gradients.
# Each rank creates an ordinary optimizer for the weight that it owns, and calls `step`.
#
# > **Predict, then run.** Which values does each rank have afterwards?
#
# <details><summary>Answer</summary>
#
# Rank 0 has 0.9 and 1.0, rank 1 has 1.0 and 0.9. Each weight is new on its owner and old on the
# other rank: two different models.
# Training can continue like this for a while, and the loss may even fall. So the owners must send
# their new weights to all other ranks, in every step.
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
# ## An optimizer inside an optimizer
#
# Users see one optimizer with all parameters. It contains a second optimizer, for this rank's own
# share. Both have **parameter groups**: dictionaries with the settings, such as the learning rate
# `lr`.
#
# > **Predict, then run.** A scheduler halves the learning rate of the outer optimizer. What is the
# > learning rate of the inner one?
#
# <details><summary>Answer</summary>
#
# Still 0.1. Each optimizer has its own groups, and the scheduler changes only the outer ones.
# Your `step` must therefore copy the settings from the outer groups to the inner ones.
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
# ## Exercise: `ShardedOptimizer`
#
# Write ZeRO's stage 1 as a `torch.optim.Optimizer`. `optimizer_class` is any optimizer, and
# `kwargs` are its settings.
# Each rank keeps the state of its own parameters only: an even share of all elements, plus at most
# one parameter.
# `step` updates this rank's share, and afterwards every rank has all new weights. It runs `closure`
# once, if there is one, and returns its result.
# Parameter groups, `add_param_group`, `zero_grad` and schedulers must work as usual. A rank may own
# no parameter of a group.
#
# Read [Sharding the optimizer](../phase2/GUIDELINES.md#sharding-the-optimizer). For a hint, run
# `!gradsync hint ShardedOptimizer` in a new cell.


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
# # Part 2: tensor parallelism
#
# ## Cutting two layers
#
# Now a single layer is too large, so each rank keeps a part of its weight.
# A linear layer computes `weight @ x`. Its weight has one row for each output and one column for
# each input. So there are two ways to cut it.
#
# Take two layers, one after the other: 2 inputs, 4 hidden values, 2 outputs. We cut the first
# weight into rows and the second into columns:

# %%
first = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
second = torch.tensor([[1.0, 2.0, 0.0, 1.0], [0.0, 1.0, 3.0, -1.0]])
draw_cuts(first, second)

# %% [markdown]
# > **Predict, then run.** The input is (1, 2), the same on both ranks. Compute by hand what each
# > rank gets from its two parts. How do you compute the output of the undivided layers from these?
#
# <details><summary>Answer</summary>
#
# Rank 0 has the hidden values (3, 2), and its columns turn them into (7, 2). Rank 1 has (2, 1), and
# its columns give (1, 5).
# The *sum* of both is (8, 7), the output of the undivided layers. An all-reduce computes it on both
# ranks.
#
# Between the two layers no message is necessary: each rank's columns need exactly the hidden values
# that the rank has.
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
# The two kinds have names. They come from a paper that writes the weight transposed. So the column
# layer keeps rows, and the row layer keeps columns:
#
# | | part of the weight | output | message in forward |
# |---|---|---|---|
# | `ColumnParallelLinear` | some **rows** | a part of the values | none |
# | `RowParallelLinear` | some **columns** | a term of every value | a sum over ranks |
#
# > **Predict, then run.** Real networks have a ReLU between the layers, which replaces negative
# > values by 0. May each rank apply it to its own hidden values? If a ReLU comes after the *second*
# > layer, may each rank apply it to its term?
#
# <details><summary>Answer</summary>
#
# On hidden values, yes: each value is complete on one rank, and ReLU is applied to each value
# separately. On terms, no: 3 + (−2) is 1, but relu(3) + relu(−2) is 3. The sum must come first.
#
# </details>

# %%
terms = torch.tensor([3.0, -2.0])
print("sum, then ReLU:", torch.relu(terms.sum()).item())
print("ReLU, then sum:", torch.relu(terms).sum().item())

# %% [markdown]
# The bias of the second layer has the same problem. If each of N ranks adds it to its term, the
# sum contains it N times.
# With one rank that is right, so a test on one rank does not find the mistake.
#
# ## Backward needs a message, too
#
# Autograd works inside one process. It ignores that another rank used the same input.
#
# Here each rank has one row of a weight: rank 0 has 2, rank 1 has 5. The output of the undivided
# layer is (2x, 5x), and the loss is the sum of its two values.
#
# > **Predict, then run.** What is the gradient of x for the undivided layer? What does each rank
# > have in `x.grad` after its own backward?
#
# <details><summary>Answer</summary>
#
# The loss is 2x + 5x, so the gradient for the undivided layer is 7. Rank 0 has 2 and rank 1 has 5:
# each has only the contribution of its own output.
# Their sum is right. So the *column* layer, which sends nothing in forward, needs a sum over ranks
# in backward.
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
# Look at `weight.grad`: it is right on both ranks. It depends only on x, and every rank has the
# complete x.
# So the layer itself learns correctly. Only the layers *before* it get a gradient that is too
# small. If you test a parallel layer, test the gradient of its input.
#
# The *row* layer is the mirror image: a sum in forward, no message in backward.
# Each term counts once in the sum, so its gradient is the gradient of the sum. A second
# all-reduce would make it N times too large.
#
# ## How to define a different backward
#
# A `torch.autograd.Function` is an operation for which you write both directions yourself.
# The example below does not use ranks. Its forward returns the values unchanged, and its backward
# limits the gradient to −1 … 1:


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
# A parallel layer needs a function of the same form. Decide what each direction must do, for the
# input of one layer and for the output of the other.
#
# ## Exercises: `ColumnParallelLinear` and `RowParallelLinear`
#
# Write both layers. On every rank, their outputs and all gradients must be the same as with
# `nn.Linear`. The **column** layer keeps `out_features / N` rows, and the bias of these outputs.
# With `gather_output=True` every rank returns the complete output.
# The **row** layer keeps `in_features / N` columns and the complete bias, which is added once.
# With `input_is_parallel=False` it receives the complete input and uses its own part.
# The attributes are called `weight` and `bias`. Raise a `ValueError` if the size is not a multiple
# of N.
# A new layer has random weights from the same range as the undivided `nn.Linear`.
#
# Read [Tensor parallelism](../phase2/GUIDELINES.md#tensor-parallelism). For hints:
# `!gradsync hint ColumnParallelLinear` and `!gradsync hint RowParallelLinear`.


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
# ## New values in the same parameter
#
# How do you put a trained weight into a parallel layer? The obvious way is to assign a new
# parameter. Below, an optimizer already exists.
#
# > **Predict, then run.** The new weight is 5, its gradient is 1, and the learning rate is 0.1.
# > What is the weight after `optimizer.step()`?
#
# <details><summary>Answer</summary>
#
# Still 5. The optimizer keeps the *old* parameter and updates only this one. No error is raised,
# and the layer never learns.
# So copy the new values into the existing parameter.
#
# </details>

# %%
layer = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

layer.weight = nn.Parameter(torch.tensor([[5.0]]))  # a new object
layer.weight.grad = torch.tensor([[1.0]])
optimizer.step()
print(layer.weight.item())

# %% [markdown]
# ## Exercise: `load_full_linear`
#
# `weight` and `bias` belong to a complete `nn.Linear`; `bias` may be `None`.
# Copy this rank's part of them into `layer`, which is one of your two layers. Its parameters must
# stay the same objects and keep `requires_grad`.
#
# The check uses your two layers, so solve these first.
# Read [Tensor parallelism](../phase2/GUIDELINES.md#tensor-parallelism). For a hint:
# `!gradsync hint load_full_linear`.


# %%
def load_full_linear(layer, weight, bias):
    """Copy this rank's part of a complete layer's weight and bias into `layer`."""
    raise NotImplementedError("phase2/load_full_linear")  # write this


# %%
check("load_full_linear", load_full_linear)

# %% [markdown]
# ## What it costs
#
# Data parallelism sends gradients: as many bytes as the weights have, for any batch size.
# Tensor parallelism sends activations: one all-reduce of the outputs in forward, and one of the
# input's gradients in backward. So its number of bytes grows with the batch.
#
# Take a pair of layers, 512 to 2,048 to 512, in float32. A row is one sample, or one word of a
# text.
#
# > **Predict, then run.** Which of the two reduces fewer bytes with 64 rows, and which with 32,768
# > rows?
#
# <details><summary>Answer</summary>
#
# With 64 rows, tensor parallelism reduces 32 times fewer bytes. With 32,768 rows, data parallelism
# reduces 16 times fewer. They are equal at 2,048 rows, the width of the hidden layer. There is a
# second difference: gradients are sent while backward continues, but the next layer cannot begin
# before it has the sum of the activations.
#
# </details>

# %%
weights = 2 * 512 * 2048 * 4  # bytes
print("data parallelism or tensor parallelism:")
for rows in (64, 2048, 32_768):
    activations = 2 * rows * 512 * 4  # bytes, forward and backward
    print(f"{rows:6,} rows: {weights / 1e6:.1f} MB or {activations / 1e6:.1f} MB")

# %% [markdown]
# # Part 3: pipelines
#
# ## The bubble
#
# The third way gives each rank some complete layers, called a **stage**. Rank 0 has the first
# layers and sends its outputs to rank 1, and so on.
# Each rank communicates only with its neighbours. But rank 1 cannot start before rank 0 has sent
# something.
#
# > **Predict, then run.** Each of four ranks has a stage, and all stages take the same time. The
# > whole batch goes through in one piece: forward to rank 3, then backward to rank 0. What share of
# > the time does each rank wait? What share is it if the batch is cut into four microbatches?
#
# <details><summary>Answer</summary>
#
# With one piece, only one rank works at any moment, so each waits three quarters of the time. With
# four microbatches, each rank waits 3/7 = 43 %. This waiting time is called the **bubble**.
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
# Each number is a microbatch. A tick is the time that a rank needs for the forward pass of one
# microbatch.
#
# With N stages and m microbatches, the first microbatch needs N ticks to reach the end. Each of the
# other m − 1 microbatches arrives one tick after the previous one. So forward takes m + N − 1
# ticks, and each rank works in m of them. Backward takes longer, but each rank waits for the same
# share of its time:
#
# > bubble = (N − 1) / (m + N − 1)

# %%
print("      " + "".join(f"m = {m:<5}" for m in (1, 4, 16, 64)))
for n in (2, 4, 8):
    shares = [(n - 1) / (m + n - 1) for m in (1, 4, 16, 64)]
    print(f"N = {n} " + "".join(f"{share:<9.0%}" for share in shares))

# %% [markdown]
# ## A pipeline on real ranks
#
# Three ranks work on a batch, forward only. Each rank needs 120 ms for the whole batch, and a sleep
# replaces the work.
# Instead of activations they send a counter: each rank adds 1.
#
# > **Predict, then run.** How long does the batch take in one piece? How long does it take in four
# > parts, if each rank needs 30 ms for a part?
#
# <details><summary>Answer</summary>
#
# In one piece 3 × 120 = 360 ms. In four parts there are 4 + 3 − 1 = 6 ticks of 30 ms: 180 ms.
# Real messages take a few milliseconds more.
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
# The timeline has the same shape as the picture above: rank 1 begins one part later than rank 0,
# and rank 2 one part later than rank 1.
#
# ## Backward through a cut
#
# A tensor that arrives in a message has no history. For autograd it is a constant.
# We can study that in one process, by cutting a computation in two with `detach`, which returns the
# values without their history.
#
# Stage 0 computes a = 3w, and stage 1 computes the loss a². At w = 2, a is 6 and the loss is 36.
#
# > **Predict, then run.** What is `w.grad` after `loss.backward()`?
#
# <details><summary>Answer</summary>
#
# `None`: backward stops at the cut. The gradient at the cut is 2a = 12, and it exists only because
# `arrived` requires a gradient.
# Stage 0 continues from there with `a.backward(gradient)`. This call does not need the loss, only
# the gradient of the loss with respect to a.
# Then `w.grad` is 12 × 3 = 36, the derivative of 9w² at w = 2.
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
# ## The order of messages
#
# In the schedule above, all ranks run all forwards first, and then all backwards. This schedule is
# called **GPipe**.
# What happens if one rank uses a different order?
#
# > **Predict, then run.** There are two microbatches. Rank 1 expects both activations first. Rank 0
# > sends one and then waits for its gradient. Which rank waits for what?
#
# <details><summary>Answer</summary>
#
# Rank 0 waits for the first gradient, and rank 1 waits for the second activation. Both wait for a
# message that the other would send only later.
# This is a deadlock, and `%%ranks` explains it. On a real cluster you would see nothing until the
# timeout.
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
# GPipe has a disadvantage: a rank keeps the activations of *all* microbatches until backward
# begins. The schedule **1F1B**, one forward and one backward in turn, starts backward as early as
# possible:

# %%
draw_schedules({"GPipe": gpipe(3, 6), "1F1B": one_forward_one_backward(3, 6)})

# %% [markdown]
# Both take the same time. But look at rank 0 in tick 6: with GPipe it keeps the activations of six
# microbatches, and with 1F1B of only three.
# With 1F1B a rank never keeps the activations of more than N microbatches, for any number of
# microbatches. Large models use it for this reason. You write GPipe, which is simpler.
#
# ## Exercise: `pipeline_train_step`
#
# `stage` is this rank's part of the model. Rank 0 reads the inputs of `microbatches`, the last rank
# reads the targets, and all ranks have the same number of microbatches.
# Run all forwards, then all backwards, then one optimizer step. Return the mean loss of the whole
# batch on every rank.
# The gradients must equal the gradients of the undivided model on the whole batch, even if the
# microbatches differ in size. They must still be in `.grad` after the step.
# Activations may have any shape and dtype, and the receiver does not have this information in
# advance.
# The function must also work with one rank.
#
# Read [Pipelines](../phase2/GUIDELINES.md#pipelines). For a hint:
# `!gradsync hint pipeline_train_step`.


# %%
def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    """Take one optimizer step of a model whose stages are on the ranks; return the mean loss."""
    raise NotImplementedError("phase2/pipeline_train_step")  # write this


# %%
check("pipeline_train_step", pipeline_train_step)

# %% [markdown]
# ## When to use which method
#
# | | divides | sends |
# |---|---|---|
# | data parallelism | the batch | gradients of all weights |
# | sharded optimizer | the optimizer's state | gradients and new weights |
# | tensor parallelism | each layer | activations, at each pair of layers |
# | pipeline | the layers | activations and their gradients, to neighbours |
#
# - If the model fits on each rank, data parallelism is the simplest.
# - If only the state does not fit, shard it.
# - If a single layer does not fit, use tensor parallelism. It needs a fast network, because its
#   messages cannot overlap with computation. So keep these ranks on one machine.
# - If the model does not fit and the network is slow, use a pipeline. It sends little.
#
# Large models combine them: tensor parallelism inside a machine, pipelines between machines, and
# data parallelism over everything.
#
# ## What to remember
#
# - Adam's state is twice as large as the weights. With sharding, each of N ranks keeps 1/N of it,
#   and owners must send their new weights in every step.
# - A layer cut into rows, followed by a layer cut into columns, needs one sum in forward, after the
#   second layer, and one sum in backward, at the input of the first.
# - A layer's own gradients can be right while the gradient of its input is wrong. Test both.
# - In a pipeline of N stages and m microbatches, a rank waits (N − 1) / (m + N − 1) of the time.
# - A received tensor has no history. Backward starts again at the cut, with the gradient that the
#   next rank sends.
#
# **Next:** [9. What it costs](09_what_it_costs.ipynb)
