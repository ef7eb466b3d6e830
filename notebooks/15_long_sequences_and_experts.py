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
# # 15. Long sequences and experts
#
# A sequence whose keys and values fit on no rank, and a layer with so many experts that no rank has
# them all. First, groups of ranks.
#
# - **Time:** 40 minutes, and an evening for the exercises.
# - **You need:** notebooks [7](07_ring.ipynb) and [11](11_splitting_a_model.ipynb).
# - **Reference:** [the guide of phase 3](../phase3/GUIDELINES.md#how-to-work)

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
from torch import Tensor, nn

from gradsync.notebook import check

# %% [markdown]
# ## Part 1: groups
#
# Six ranks, two copies of a model, each split over three ranks. The ranks of a row exchange
# activations, and those of a column average gradients.

# %%
grid = torch.arange(6).view(2, 3)
print("rows:   ", grid.tolist())
print("columns:", grid.T.tolist())

# %% [markdown]
# > **Predict, then run.** Each of four ranks creates only the group that it is in, ranks 0 and 1
# > the one, ranks 2 and 3 the other. What happens?
#
# <details><summary>Answer</summary>
#
# `new_group` is a collective of all ranks, members or not. Different lists do not match.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
import torch.distributed as dist

own = [0, 1] if rank < 2 else [2, 3]
group = dist.new_group(own)

# %% [markdown]
# Every rank creates both groups, in one order, and keeps one. Then each group has collectives of
# its own:

# %%
# %%ranks 4
import torch
import torch.distributed as dist

groups = [dist.new_group(members) for members in ([0, 1], [2, 3])]
number = torch.tensor(float(rank))
dist.all_reduce(number, group=groups[rank // 2])
print(f"rank {rank}: the sum of the ranks of my group is {number:.0f}")

# %% [markdown]
# ### Exercise: `make_groups`
#
# Reference: [Groups](../phase3/GUIDELINES.md#groups). For a hint, run `!gradsync hint make_groups`
# in a new cell.


# %%
def make_groups(data: int, tensor: int):
    """Return this rank's column and row as groups: (data_group, tensor_group)."""
    raise NotImplementedError("phase3/make_groups")  # write this


# %%
check("make_groups", make_groups)

# %% [markdown]
# ## Part 2: long sequences
#
# Attention compares every query with every key. A softmax over keys that arrive in two pieces:
#
# > **Predict, then run.** Scores 0 and 1 arrive first, then 3. Each piece has a softmax of its own.
# > Can you put them together?
#
# <details><summary>Answer</summary>
#
# Not from the softmaxes alone: each has the sum 1, and how large the scores were is lost. With the
# sums of exp(score), the pieces have weights.
#
# </details>

# %%
scores = torch.tensor([0.0, 1.0, 3.0])
pieces = scores[:2], scores[2:]
sums = torch.stack([piece.exp().sum() for piece in pieces])
parts = [p.softmax(0) * s / sums.sum() for p, s in zip(pieces, sums, strict=True)]
print("softmax over all:", scores.softmax(0))
print("of two pieces:   ", torch.cat(parts))

# %% [markdown]
# > **Predict, then run.** The same with scores of a few hundred, in float32.

# %%
large = torch.tensor([0.0, 100.0, 300.0])
print("exp:            ", large.exp())
print("exp / sum:      ", large.exp() / large.exp().sum())
print("less the maximum:", (large - large.max()).exp() / (large - large.max()).exp().sum())

# %% [markdown]
# But the maximum is known only at the end. What if a larger one comes?
#
# > **Predict.** The sum so far is 1.5, relative to the maximum 2. A score of 5 arrives. What is the
# > sum relative to 5?
#
# <details><summary>Answer</summary>
#
# 1.5 · exp(2 − 5) + 1 = 1.07. Whatever is relative to the old maximum is multiplied by exp(old −
# new).
#
# </details>
#
# ### Chunks on a ring

# %%
# %%ranks 4
chunk = torch.tensor([float(rank)])
seen = [int(chunk)]
for _ in range(world_size - 1):
    arrived = torch.empty(1)
    send = dist.P2POp(dist.isend, chunk, (rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, arrived, (rank - 1) % world_size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    chunk = arrived
    seen.append(int(chunk))
print(f"rank {rank} has seen the chunks of ranks {seen}")

# %% [markdown]
# > **Predict.** The attention is causal. Which of these chunks does rank 1 use, and which part of
# > them?
#
# <details><summary>Answer</summary>
#
# Its own, without the upper triangle, and all of rank 0's. Those of ranks 3 and 2 are later: all
# hidden. Rank 3 has four times the work of rank 0.
#
# </details>
#
# > **Predict.** In backward, the gradients of rank 0's keys have a part on each rank. They travel
# > with the chunk. After how many exchanges are they at home?
#
# <details><summary>Answer</summary>
#
# After four: three bring the chunk to the last rank, and one more brings it home.
#
# </details>
#
# ### Exercise: `ring_attention`
#
# Reference: [Long sequences](../phase3/GUIDELINES.md#long-sequences).


# %%
def ring_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True) -> Tensor:
    """Return this rank's rows of attention over the sequence of all ranks."""
    raise NotImplementedError("phase3/ring_attention")  # write this


# %%
check("ring_attention", ring_attention)

# %% [markdown]
# ## Part 3: experts
#
# A layer with E experts has E times the parameters, but each token is computed by one of them. The
# router decides which. With E/N experts on each rank, tokens travel.
#
# > **Predict, then run.** Two ranks, two experts. Rank 0's tokens choose 1, 0, 1, and rank 1's
# > token chooses 0. How many tokens does each rank send to each, and receive?

# %%
# %%ranks 2
import torch
import torch.distributed as dist

chosen = torch.tensor([[1, 0, 1], [0, 0, 0]][rank][: [3, 1][rank]])
sent = chosen.bincount(minlength=2)
received = torch.empty_like(sent)
dist.all_to_all_single(received, sent)
print(f"rank {rank} sends {sent.tolist()} and receives {received.tolist()}")

# %% [markdown]
# Now each rank knows the sizes of what arrives. A size may be 0, and the rank takes part anyway.
#
# > **Predict, then run.** The tokens are sent in the order of their experts. In which order do the
# > results come back, and how do you get the original one?

# %%
tokens = torch.tensor([10.0, 20.0, 30.0])
order = torch.tensor([1, 0, 1]).argsort(stable=True)
print("sent:   ", tokens[order].tolist())
print("back:   ", (tokens[order] + 1).tolist(), "from experts that add 1")
print("in order:", (tokens[order] + 1)[order.argsort()].tolist())

# %% [markdown]
# > **Predict.** A choice has no gradient. How does the router learn?
#
# <details><summary>Answer</summary>
#
# The result is multiplied by the probability of the chosen expert, which has a gradient.
#
# </details>
#
# ### Exercise: `ExpertParallelMLP`
#
# Reference: [Experts](../phase3/GUIDELINES.md#experts).


# %%
class ExpertParallelMLP(nn.Module):
    """A layer of E experts, of which each rank has E/N; each token goes to one of them."""

    def __init__(self, d_model: int, d_hidden: int, num_experts: int):  # noqa: ARG002
        super().__init__()
        raise NotImplementedError("phase3/ExpertParallelMLP")  # write this

    def forward(self, inputs):
        """Map this rank's tokens (tokens, d_model) to outputs of the same shape."""
        raise NotImplementedError("phase3/ExpertParallelMLP")  # write this

    def load_full(self, router_weight, expert_states):
        """Copy this rank's part of a full layer."""
        raise NotImplementedError("phase3/ExpertParallelMLP")  # write this


# %%
check("ExpertParallelMLP", ExpertParallelMLP)

# %% [markdown]
# ### Exercise: `load_balancing_loss`
#
# A router that prefers an expert trains it more, and then prefers it more. A second loss keeps the
# shares equal.
#
# > **Predict, then run.** E is 4. What is E · Σ f · p if all tokens go to one expert with
# > probability 1, and what if the shares are equal?

# %%
for shares in (torch.tensor([1.0, 0, 0, 0]), torch.full((4,), 0.25)):
    print(shares.tolist(), "->", (4 * (shares * shares).sum()).item())

# %% [markdown]
# Reference: [Experts](../phase3/GUIDELINES.md#experts).


# %%
def load_balancing_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return E * sum(f_e * p_e) over the tokens of all ranks."""
    raise NotImplementedError("phase3/load_balancing_loss")  # write this


# %%
check("load_balancing_loss", load_balancing_loss)

# %% [markdown]
# ### What to remember
#
# - Every rank creates every group.
# - A softmax in pieces needs the maximum so far, and sums relative to it.
# - Gradients of what travels must travel, too, and come home.
# - Ranks that exchange tokens first exchange their numbers; 0 is a number, too.
