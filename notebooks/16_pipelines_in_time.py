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
# # 16. Pipelines in time
#
# The same pipeline as in [notebook 11](11_splitting_a_model.ipynb), with the same bubble. Only the
# order of the passes changes, and with it the memory.
#
# - **Time:** 15 minutes, and an hour for the exercise.
# - **You need:** `pipeline_train_step` from phase 2.
# - **Reference:** [Pipelines](../phase3/GUIDELINES.md#pipelines)

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
from pictures_splitting import draw_schedules
from schedules import gpipe, one_forward_one_backward

from gradsync.notebook import check

# %% [markdown]
# ## Two orders
#
# > **Predict.** Three ranks, six microbatches. In GPipe, how many microbatches has rank 0 run
# > forward when the first gradient arrives? And when could the first gradient have arrived?
#
# <details><summary>Answer</summary>
#
# All six. But the last rank has the loss of microbatch 0 after three forwards, and could run
# backward at once.
#
# </details>


# %%
def orders(stages, microbatches):
    """Draw both orders; plain blocks are forwards, hatched ones backwards."""
    return draw_schedules(
        {
            "GPipe": gpipe(stages, microbatches),
            "1F1B": one_forward_one_backward(stages, microbatches),
        }
    )


explore(
    orders, stages=slider("stages, N", 3, 2, 6), microbatches=slider("microbatches, M", 6, 1, 12)
)

# %% [markdown]
# Both take the same time. 1F1B has three parts: N − 1 − r forwards ahead, one forward and one
# backward in turn, and the rest of the backwards.
#
# ## What it keeps
#
# > **Predict, then run.** A microbatch's activations are kept from its forward to its backward.
# > What is the largest number on each rank, with 6 microbatches? With 60?


# %%
def most_alive(order):
    """Return the largest number of microbatches that wait for their backward."""
    alive = most = 0
    for kind, _ in order:
        alive += 1 if kind == "F" else -1
        most = max(most, alive)
    return most


for microbatches in (6, 60):
    for name, schedule in (
        ("GPipe", gpipe(3, microbatches)),
        ("1F1B", one_forward_one_backward(3, microbatches)),
    ):
        print(f"{microbatches:2} microbatches, {name:5}", [most_alive(o) for o in schedule.orders])

# %% [markdown]
# Since memory no longer grows with M, M can grow, and the bubble shrinks. Once you have written
# yours, `gradsync trace --phase 3 --pipeline` draws its schedule and measures its bubble.

# %%
for microbatches in (3, 6, 24, 96):
    print(f"3 ranks, {microbatches:2} microbatches: {2 / (microbatches + 2):.0%} bubble")

# %% [markdown]
# ## Both send first
#
# In the middle part, neighbours have something for each other: one activations, one a gradient.
#
# > **Predict, then run.** Both send, then receive. What does a send that waits for its receiver do?

# %% tags=["raises-exception"]
# %%ranks 2
import torch
import torch.distributed as dist

mine, other = torch.ones(4), torch.empty(4)
dist.send(mine, 1 - rank)
dist.recv(other, 1 - rank)

# %% [markdown]
# One of the two must receive first. Which one can do so without waiting longer than it has to?
#
# <details><summary>Answer</summary>
#
# The rank nearer to the beginning. It needs the gradient now, and the next rank sends it before it
# needs further activations.
#
# </details>
#
# ## Letting go
#
# > **Predict, then run.** After its backward, nothing of a microbatch is needed. What keeps its
# > outputs and its graph if you add up losses?

# %%
weight = torch.ones(3, requires_grad=True)
total = 0
for _ in range(3):
    loss = (weight**2).sum()
    loss.backward()
    total = total + loss  # instead of loss.item()
node, length = total.grad_fn, 0
while node is not None and node.next_functions:
    node, length = node.next_functions[0][0], length + 1
print("the sum of losses keeps a chain of", length, "nodes, and all that they refer to")

# %% [markdown]
# ### Exercise: `pipeline_1f1b`
#
# Begin with a copy of your `pipeline_train_step`: what a microbatch needs is the same. The check
# looks at the order of the passes, and at what is kept.
#
# Reference: [Pipelines](../phase3/GUIDELINES.md#pipelines). For a hint, run
# `!gradsync hint pipeline_1f1b` in a new cell.


# %%
def pipeline_1f1b(stage, microbatches, loss_fn, optimizer) -> float:
    """Take one optimizer step of a model in stages, in 1F1B order; return the batch's loss."""
    raise NotImplementedError("phase3/pipeline_1f1b")  # write this


# %%
check("pipeline_1f1b", pipeline_1f1b)

# %% [markdown]
# ### What to remember
#
# - The order of the passes decides what is kept, not what is computed.
# - Rank r keeps N − r microbatches, however many there are.
# - Where two ranks have something for each other, one receives first.
