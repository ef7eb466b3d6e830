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
# # 14. Sharding a transformer
#
# A model that does not fit on any rank: packed tokens, parameters that are whole only while their
# layer computes, half precision, and checkpoints that N ranks write and M ranks read.
#
# - **Time:** 40 minutes, and two evenings for the exercises; `FullyShardedModule` is the core.
# - **You need:** notebooks [6](06_shares_that_resume.ipynb) and
#   [10](10_sharding_and_resuming.ipynb).
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
import sys

import torch
from torch import Tensor, nn

from gradsync.notebook import check

sys.path.append("../phase3")
from model import EOS, Transformer, standard_library

# %% [markdown]
# ## Part 1: tokens
#
# The documents are the modules of your own Python, and a token is a byte.
#
# > **Predict, then run.** Each document gets a row of its own, and rows have room for 8,192 bytes.
# > What is cut off is lost, and what is left empty is padding. Which is larger?

# %%
documents = standard_library()
lengths = torch.tensor([len(document) for document in documents])
room = 8192
print(f"{len(documents)} documents, {lengths.sum():,} bytes")
print(f"lost:    {(lengths - room).clamp(min=0).sum():,}")
print(f"padding: {(room - lengths).clamp(min=0).sum():,}")

# %% [markdown]
# ### Exercise: `pack_documents`
#
# One stream, each document followed by `eos`, cut into rows of L + 1 tokens that overlap by one.
#
# > **Predict.** Why one? What is lost if rows do not overlap?
#
# <details><summary>Answer</summary>
#
# The first token of a row is never a target, because nothing comes before it. If the row before
# ends with the same token, it is a target there.
#
# </details>
#
# Reference: [Packing documents](../phase3/GUIDELINES.md#packing-documents). For a hint, run
# `!gradsync hint pack_documents` in a new cell.


# %%
def pack_documents(documents, sequence_length: int, eos: int) -> Tensor:
    """Pack documents into rows of L + 1 tokens; each token but the first is a target once."""
    raise NotImplementedError("phase3/pack_documents")  # write this


# %%
check("pack_documents", pack_documents)

# %% [markdown]
# ### Exercise: `document_mask`
#
# Row `a b 0 c` has two documents, since 0 ends one. `[b, q, k]` is true if token q may see
# token k.
#
# > **Predict.** Which tokens does `c` see? And the 0?
#
# <details><summary>Answer</summary>
#
# `c` sees itself. The 0 belongs to the document that it ends, so it sees `a`, `b` and itself.
#
# </details>
#
# Reference: [Documents must not see each
# other](../phase3/GUIDELINES.md#documents-must-not-see-each-other).


# %%
def document_mask(inputs: Tensor, eos: int) -> Tensor:
    """Return which tokens (batch, q, k) each token may see."""
    raise NotImplementedError("phase3/document_mask")  # write this


# %%
check("document_mask", document_mask)

# %% [markdown]
# ### Exercise: `TokenLoader`
#
# A generator stops at `yield`. What has it done when the loop's body runs?

# %%
log = []


def batches():
    """Yield two batches; note what happens before and after."""
    for number in range(2):
        log.append(f"before {number}")
        yield number
        log.append(f"after {number}")


for number in batches():
    log.append(f"body {number}")
print(", ".join(log))

# %% [markdown]
# A loop that saves a checkpoint in its body asks for the position *there*.
#
# Reference: [A loader that can stop
# anywhere](../phase3/GUIDELINES.md#a-loader-that-can-stop-anywhere).


# %%
class TokenLoader:
    """Yields this rank's batches (inputs, targets) of an epoch; resumes after any batch."""

    def __init__(self, sequences, batch_size, num_replicas, rank, *, seed=0):
        raise NotImplementedError("phase3/TokenLoader")  # write this

    def set_epoch(self, epoch):
        """Set the epoch of the next pass; the epoch of a loaded state keeps the position."""
        raise NotImplementedError("phase3/TokenLoader")  # write this

    def __iter__(self):
        """Yield the batches."""
        raise NotImplementedError("phase3/TokenLoader")  # write this

    def state_dict(self):
        """Return the position after the last batch."""
        raise NotImplementedError("phase3/TokenLoader")  # write this

    def load_state_dict(self, state):
        """Continue from a position, on any number of ranks."""
        raise NotImplementedError("phase3/TokenLoader")  # write this


# %%
check("TokenLoader", TokenLoader)

# %% [markdown]
# ### Exercise: `token_weighted_loss`
#
# > **Predict, then run.** Rank 0 has three tokens with losses 1, 2 and 3, rank 1 has one with 8.
# > The ranks average their mean losses. By how much does this differ from the mean over tokens?

# %%
losses = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([8.0])]
print(f"mean of means:    {torch.stack([own.mean() for own in losses]).mean()}")
print(f"mean over tokens: {torch.cat(losses).mean()}")

# %% [markdown]
# Reference: [The mean over tokens](../phase3/GUIDELINES.md#the-mean-over-tokens).


# %%
def token_weighted_loss(logits: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Return this rank's share of the mean loss over all tokens of all ranks."""
    raise NotImplementedError("phase3/token_weighted_loss")  # write this


# %%
check("token_weighted_loss", token_weighted_loss)

# %% [markdown]
# ## Part 2: parameters
#
# > **Predict, then run.** Which of the transformer's parameters are worth sharding?

# %%
model = Transformer()
large = [p.numel() for p in model.parameters() if p.dim() > 1]
small = [p.numel() for p in model.parameters() if p.dim() < 2]
print(f"{len(large)} with two dimensions: {sum(large):,} elements")
print(f"{len(small)} with one dimension:  {sum(small):,} elements")

# %% [markdown]
# ### What autograd keeps
#
# A linear layer needs its weight again in backward. The next cell counts what autograd saves.

# %%
layer = nn.Linear(300, 200, bias=False)
inputs = torch.randn(4, 300, requires_grad=True)
saved = []


def pack(tensor):
    """Note the shape of a tensor that autograd saves."""
    saved.append(tuple(tensor.shape))
    return tensor


with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
    layer(inputs)
print(saved)

# %% [markdown]
# The weight is among them, here transposed. If `pack` returns something else, for example where to
# get the weight, then nothing keeps its memory, and `unpack` has to get it again.
#
# ### Where a layer finds its weight
#
# > **Predict, then run.** What does the layer compute with, and what does an optimizer see?

# %%
layer.__dict__["weight"] = torch.ones(200, 300)
print("computes with", layer(torch.ones(1, 300))[0, 0].item())
print("optimizer sees ones:", bool((next(layer.parameters()) == 1).all()))
del layer.__dict__["weight"]

# %% [markdown]
# ### Parts of three ranks

# %%
# %%ranks 3
import torch
import torch.distributed as dist

whole = torch.arange(12.0).view(3, 4) + 100 * rank  # another gradient on each rank
part = torch.zeros(4)
dist.reduce_scatter(part, list(whole.view(3, 4)))
print(f"rank {rank} has the sum of part {rank}: {part.tolist()}")

# %% [markdown]
# ### Exercise: `FullyShardedModule`
#
# Reference: [Sharding the parameters](../phase3/GUIDELINES.md#sharding-the-parameters), with
# the way from the naive version to the real one. Start with one layer, and check often.


# %%
class FullyShardedModule(nn.Module):
    """Each rank keeps 1/N of each large parameter, whole only while its submodule computes."""

    def __init__(self, module: nn.Module, *, compute_dtype=None):  # noqa: ARG002
        super().__init__()
        raise NotImplementedError("phase3/FullyShardedModule")  # write this

    def forward(self, *args, **options):
        """Call the wrapped module."""
        raise NotImplementedError("phase3/FullyShardedModule")  # write this

    def finish(self):
        """Wait until every gradient is the mean over all ranks."""
        raise NotImplementedError("phase3/FullyShardedModule")  # write this

    def full_state_dict(self):
        """Return the whole parameters and buffers."""
        raise NotImplementedError("phase3/FullyShardedModule")  # write this


# %%
check("FullyShardedModule", FullyShardedModule)

# %% [markdown]
# ### Exercise: `clip_grad_norm_`
#
# > **Predict, then run.** Rank 0 has the gradients 3 and 4 of a parameter, rank 1 has 12 and
# > 0. Each takes the norm of its own. What is the norm of all four?

# %%
parts = [torch.tensor([3.0, 4.0]), torch.tensor([12.0, 0.0])]
print("own norms:  ", [part.norm().item() for part in parts])
print("norm of all:", torch.cat(parts).norm().item())

# %% [markdown]
# Reference: [The norm of all gradients](../phase3/GUIDELINES.md#the-norm-of-all-gradients).


# %%
def clip_grad_norm_(model, max_norm: float) -> float:
    """Scale all gradients so that their norm is at most `max_norm`; return the norm."""
    raise NotImplementedError("phase3/clip_grad_norm_")  # write this


# %%
check("clip_grad_norm_", clip_grad_norm_)

# %% [markdown]
# ## Part 3: half precision
#
# > **Predict, then run.** A weight of 1 gets a hundred updates of 0.001. What is it afterwards in
# > float32, and in bfloat16?

# %%
for dtype in (torch.float32, torch.bfloat16):
    weight = torch.ones((), dtype=dtype)
    for _ in range(100):
        weight += 0.001
    print(f"{dtype!s:16} {weight.item():.4f}")
tiny = torch.tensor(1e-8)
print("1e-8 in float16:", tiny.half().item(), "- scaled:", (tiny * 65536).half().item() / 65536)

# %% [markdown]
# ### Exercise: `LossScaler`
#
# Reference: [Half precision](../phase3/GUIDELINES.md#half-precision).


# %%
class LossScaler:
    """Scales the loss; skips a step on all ranks if any has an infinite or NaN gradient."""

    def __init__(self, init_scale=2.0**16, growth_interval=2000):
        raise NotImplementedError("phase3/LossScaler")  # write this

    def scale(self, loss):
        """Return the loss times the scale."""
        raise NotImplementedError("phase3/LossScaler")  # write this

    def step(self, optimizer, model):
        """Unscale and step, or skip; return whether it stepped."""
        raise NotImplementedError("phase3/LossScaler")  # write this

    def state_dict(self):
        """Return the scale, and the count."""
        raise NotImplementedError("phase3/LossScaler")  # write this

    def load_state_dict(self, state):
        """Continue with a scale and a count."""
        raise NotImplementedError("phase3/LossScaler")  # write this


# %%
check("LossScaler", LossScaler)

# %% [markdown]
# ## Part 4: checkpoints
#
# > **Predict.** Three ranks replace their files one after another, and the machine fails after the
# > second. What does loading find?
#
# <details><summary>Answer</summary>
#
# Two parts of the new step and one of the old, and no error.
#
# </details>
#
# > **Predict, then run.** Ten elements were saved by three ranks, padded to 12. Two ranks
# > load them, and the padding was forgotten. What does each get?

# %%
saved_parts = nn.functional.pad(torch.arange(1.0, 11), (0, 2)).chunk(3)
print("saved:    ", [part.tolist() for part in saved_parts])
print("forgotten:", [part.tolist() for part in torch.cat(saved_parts).chunk(2)])

# %% [markdown]
# ### Exercises: `save_sharded` and `load_sharded`
#
# Reference: [Checkpoints in shards](../phase3/GUIDELINES.md#checkpoints-in-shards).


# %%
def save_sharded(folder, model, optimizer, step: int) -> None:
    """Save a checkpoint of which each rank writes its part, completely or not at all."""
    raise NotImplementedError("phase3/save_sharded")  # write this


def load_sharded(folder, model, optimizer) -> int:
    """Load the latest complete checkpoint, of any number of ranks; return its step."""
    raise NotImplementedError("phase3/load_sharded")  # write this


# %%
check("save_sharded", save_sharded)

# %%
check("load_sharded", load_sharded)

# %% [markdown]
# ## Part 5: training
#
# > **Predict, then run.** A model that knows nothing gives each of 256 bytes the same probability.
# > What is its loss?

# %%
tokens = documents[0][:64][None]
logits = Transformer()(tokens)
print(f"{nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:]).item():.2f}")
print(f"ln 256 = {torch.tensor(256.0).log().item():.2f}; documents end with byte {EOS}")

# %% [markdown]
# ### Exercise: `train`
#
# The check takes your other functions from this notebook or from your files in `phase3/`.
# Afterwards `gradsync train phase3` in a terminal trains the transformer, and prints a sample
# of its text.
#
# Reference: [Training a transformer](../phase3/GUIDELINES.md#training-a-transformer).


# %%
def train(
    info,
    model,
    sequences,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed=0,
    compute_dtype=None,
    max_norm=1.0,
    resume_from=None,
) -> list[dict]:
    """Train a language model with AdamW, sharded over all ranks."""
    raise NotImplementedError("phase3/train")  # write this


# %%
check("phase3/train", train)

# %% [markdown]
# ### What to remember
#
# - Packing wastes no computation, but only a mask keeps documents apart.
# - Weigh tokens, not ranks.
# - Gather, compute, let go; and again in backward. A reduce-scatter is the transpose of an
#   all-gather.
# - What every rank must do alike, the ranks agree on first: to skip a step, to scale by a norm,
# which   checkpoint is the current one.
