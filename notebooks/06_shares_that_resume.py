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
# # 6. Shares that can resume
#
# A long training run stops from time to time: a job reaches its limit, or a machine fails. It
# should continue where it stopped, in the middle of an epoch, perhaps with fewer ranks. Here you
# divide samples so that it can, and batches so that they fit.
#
# - **Time:** 15 minutes, and 45 more for the three exercises.
# - **You need:** shares, from [notebook 2](02_splitting_data.ipynb).
# - **Reference:** [Resumable shares](../phase2/GUIDELINES.md#resumable-shares), [Shares without
#   padding](../phase2/GUIDELINES.md#shares-without-padding) and
#   [Microbatches](../phase2/GUIDELINES.md#microbatches)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# ## Chunks or strides?
#
# With *strides* and N = 4, rank 0 takes positions 0, 4, 8, ... of the order, rank 1 takes 1, 5, 9,
# ..., and so on.
#
# > **Predict, then run.** 24 samples, 4 ranks, and each has taken 2. Which positions of the order
# > have been seen, with chunks and with strides?
#
# <details><summary>Answer</summary>
#
# With chunks 0–1, 6–7, 12–13 and 18–19: four pieces that depend on N. With strides 0 to 7. One
# number describes that, 8 samples, and it means the same for any N.
#
# </details>

# %%
from controls import choice, explore, slider
from pictures_shares import seen

explore(
    seen,
    ranks=choice("N, ranks", 4, [2, 3, 4, 6, 8]),
    each=slider("samples of each rank", 2, 0, 12),
)

# %% [markdown]
# To resume, drop what has been seen. The remaining positions are a shorter order, divided among
# the *current* ranks by the same rules.
#
# | M | seen | current ranks | remaining order | the shares |
# |---|---|---|---|---|
# | 10 | 0 | 4 | 0 … 9 | `[0,4,8] [1,5,9] [2,6,0] [3,7,1]` |
# | 10 | 4 | 3 | 4 … 9 | `[4,7] [5,8] [6,9]` |
# | 10 | 4 | 4 | 4 … 9 | `[4,8] [5,9] [6,?] [7,?]` |
#
# > **Predict.** Which two samples belong at the question marks: 0 and 1, or 4 and 5?
#
# <details><summary>Answer</summary>
#
# 4 and 5. Padding repeats the beginning of the order, which is now 4. Samples 0 to 3 were used
# before the interruption.
#
# </details>
#
# > **Predict.** Can't the sampler count the samples itself? A loader has two workers and batches
# > of 4, and the training loop has used two batches. How many indices has the sampler yielded?
#
# <details><summary>Answer</summary>
#
# More than 8. Each worker fetches two batches ahead, so the sampler has yielded 24. Only the
# training loop knows what has been used.
#
# </details>
#
# ## Exercise: `ResumableDistributedSampler`
#
# Write the strided sampler: padded as in notebook 2, or cut with `drop_last`, and resumable for
# one pass. The tables in the reference say what `resume`, `set_epoch` and `len` do together.
#
# Reference: [Resumable shares](../phase2/GUIDELINES.md#resumable-shares). For a hint, run
# `!gradsync hint phase2/ResumableDistributedSampler` in a new cell.

# %%
from collections.abc import Iterator, Sized

from torch.utils.data import Sampler


class ResumableDistributedSampler(Sampler[int]):
    """The samples of one rank's strided share; a pass can begin in the middle of an epoch."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        raise NotImplementedError("phase2/ResumableDistributedSampler")  # write this

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass: the complete epoch, or the rest of a resumed one."""
        raise NotImplementedError("phase2/ResumableDistributedSampler")  # write this

    def resume(self, epoch: int, samples_seen: int) -> None:
        """Set the next pass to the remaining samples of an epoch."""
        raise NotImplementedError("phase2/ResumableDistributedSampler")  # write this

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples of the next pass."""
        raise NotImplementedError("phase2/ResumableDistributedSampler")  # write this

    def __len__(self) -> int:
        """Return the number of samples that the next pass yields."""
        raise NotImplementedError("phase2/ResumableDistributedSampler")  # write this


# %%
from gradsync.notebook import check

check("phase2/ResumableDistributedSampler", ResumableDistributedSampler)

# %% [markdown]
# ## Shares without padding
#
# In an evaluation each sample should count once, so the counts may differ. A simple way rounds M/N
# up, gives each rank that many and the last ranks the remaining samples.
#
# > **Predict, then run.** 9 samples on 8 ranks. How many does each rank get? For which ranks do
# > the others wait?
#
# <details><summary>Answer</summary>
#
# 2, 2, 2, 2, 1, 0, 0, 0. All others wait for four ranks with two samples. A fair split has only
# one such rank.
#
# </details>

# %%
from math import ceil


def sizes_rounded_up(num_samples: int, num_replicas: int) -> list[int]:
    """Return how many samples each rank gets if all take M/N, rounded up."""
    remaining, sizes = num_samples, []
    for _ in range(num_replicas):
        sizes.append(min(ceil(num_samples / num_replicas), remaining))
        remaining -= sizes[-1]
    return sizes


for num_samples, num_replicas in [(10, 4), (9, 8), (17, 8)]:
    sizes = sizes_rounded_up(num_samples, num_replicas)
    print(f"{num_samples} samples on {num_replicas} ranks: {sizes}")

# %% [markdown]
# ## Exercise: `shard_without_padding`
#
# Return rank r's contiguous share as a `range`, in sizes that differ by at most one, larger ones
# first.
#
# Reference: [Shares without padding](../phase2/GUIDELINES.md#shares-without-padding). For a hint,
# run `!gradsync hint phase2/shard_without_padding` in a new cell.


# %%
def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Return rank r's contiguous share of the samples, without any padding."""
    raise NotImplementedError("phase2/shard_without_padding")  # write this


# %%
check("phase2/shard_without_padding", shard_without_padding)

# %% [markdown]
# ## Cutting a batch
#
# A batch that does not fit into memory is cut into *microbatches*. Is PyTorch's `chunk` suitable?
#
# > **Predict, then run.** Into which sizes does `chunk(4)` cut 10 samples? And 6 samples?
#
# <details><summary>Answer</summary>
#
# 3, 3, 3 and 1, because `chunk` rounds the size up. 6 samples become 2, 2 and 2: three parts,
# although you asked for four.
#
# </details>

# %%
import torch
import torch.nn.functional as F

for samples in (10, 6):
    print(samples, "samples:", [len(part) for part in torch.arange(samples).chunk(4)])

# %% [markdown]
# A part must not be a copy, since you cut the batch to save memory. A **view** uses the memory of
# another tensor:

# %%
batch = torch.arange(10)
by_slice = batch[2:5]
by_list = batch[[2, 3, 4]]
batch += 100
print("slice:", by_slice.tolist(), " a view: it has changed")
print("list: ", by_list.tolist(), "       a copy: it has not")

# %% [markdown]
# And no part may be empty. Its mean loss is 0 ÷ 0, and one such number turns every weight into
# `nan`:

# %%
print(F.mse_loss(torch.empty(0), torch.empty(0)))

# %% [markdown]
# ## Exercise: `split_microbatches`
#
# Cut a tuple of tensors into a list of tuples: fair sizes, the larger ones first, all tensors at
# the same places, views. Too many parts, or fewer than one, raise a `ValueError`.
#
# Reference: [Microbatches](../phase2/GUIDELINES.md#microbatches). For a hint, run `!gradsync hint
# split_microbatches` in a new cell.


# %%
def split_microbatches(batch, num_microbatches):
    """Split each tensor of a batch along dim 0 into views, the larger ones first."""
    raise NotImplementedError("phase2/split_microbatches")  # write this


# %%
check("split_microbatches", split_microbatches)

# %% [markdown]
# ## What to remember
#
# - With strides, one number describes what all ranks have seen, so training can resume with a
#   different N.
# - What is left of an epoch is an order like any other, padded with its own beginning.
# - Only the training loop knows how many samples were used.
#
# **Next:** [7. The ring](07_ring.ipynb)
