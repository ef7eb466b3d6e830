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
# # 2. Splitting data
#
# In data-parallel training each rank works on its own part of the samples. Here you see why the
# parts must be equally large, and why all ranks must shuffle alike.
#
# - **Time:** 15 minutes, and 30 more for the two exercises.
# - **You need:** [notebook 1](01_what_is_a_rank.ipynb), and `DataLoader` from PyTorch.
# - **Reference:** [Data distribution](../phase1/GUIDELINES.md#data-distribution) and [Data
#   loaders](../phase1/GUIDELINES.md#data-loaders)

# %%
# On a hosted service this installs the course.
try:
    import gradsync
except ImportError:
    # %pip install --quiet "..[notebooks]"
    import gradsync

# %load_ext gradsync

# %% [markdown]
# ## Which rank gets which sample?
#
# There are M samples and N ranks. A rank's part is its *share* or *shard*, one pass over all
# samples an *epoch*. A *sampler* yields the numbers of a rank's samples, in the order in which it
# uses them.
#
# > **Predict, then run.** Ten samples, four ranks. Every rank must get the same number, and no
# > sample may be left out. How many does each get?
#
# <details><summary>Answer</summary>
#
# Three: 10 ÷ 4, rounded up. That makes twelve, so the order is *padded*: after its end comes its
# beginning, here samples 0 and 1.
#
# </details>
#
# Each rank takes one *contiguous* chunk. In a running notebook, move the sliders.

# %%
from controls import checkbox, explore, slider
from pictures_shares import how_often, shares

explore(
    shares,
    samples=slider("M, samples", 10, 1, 24),
    ranks=slider("N, ranks", 4, 1, 8),
    shuffle=checkbox("shuffle"),
    epoch=slider("epoch", 0, 0, 9),
)

# %% [markdown]
# > **Predict, then run.** How many samples are repeated with 9 samples on 4 ranks? And what
# > happens with 3 samples on 8 ranks?
#
# <details><summary>Answer</summary>
#
# Three: 9 samples become 12. With 3 samples on 8 ranks, each rank gets one, and the order is
# repeated until all eight have one: 0, 1, 2, 0, 1, 2, 0, 1.
#
# </details>

# %%
shares(samples=3, ranks=8, shuffle=False, epoch=0)

# %% [markdown]
# ## Why must the counts be equal?
#
# Here ten samples are divided as evenly as possible, *without* padding. Each rank goes through its
# samples and calls an all-reduce for each, as a training loop does.
#
# > **Predict, then run.** What happens in the third step?
#
# <details><summary>Answer</summary>
#
# Ranks 2 and 3 have no third sample and leave the loop. Ranks 0 and 1 wait in `all_reduce` for
# ranks that never call it: a deadlock.
#
# </details>

# %% tags=["raises-exception"]
# %%ranks 4
import torch
import torch.distributed as dist

unequal = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
for sample in unequal[rank]:
    gradient = torch.tensor([float(sample)])
    dist.all_reduce(gradient)

# %% [markdown]
# With padding, all ranks make the same number of steps:

# %%
# %%ranks 4
equal = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 0, 1]]
for step, sample in enumerate(equal[rank]):
    gradient = torch.tensor([float(sample)])
    dist.all_reduce(gradient)
    print(f"step {step}: the sum over ranks is {gradient.item():.0f}")

# %% [markdown]
# ## All ranks must shuffle in the same order
#
# A sampler that shuffles permutes all M samples first, then pads, then cuts, on each rank alone.
# In the next cell every rank shuffles 12 samples with PyTorch's global random generator and takes
# three. `manual_seed` imitates a real program, in which the ranks have already drawn different
# amounts of random numbers.
#
# > **Predict, then run.** Every rank gets three samples, so the counts are right. What is wrong?
#
# <details><summary>Answer</summary>
#
# Each rank cuts its chunk out of a different order. Some samples are drawn by several ranks,
# others by none, and nothing fails: the loss goes down all the same.
#
# </details>

# %%
# %%ranks 4
torch.manual_seed(rank)  # different random numbers on each rank
order = torch.randperm(12)
mine = order[3 * rank : 3 * rank + 3].tolist()
mine

# %%
# %ranks pull mine
how_often(mine, samples=12)

# %% [markdown]
# So the order may depend only on what is the same on all ranks: the *seed* and the *epoch*. A
# *separate* generator produces such an order. Look at the difference with dice:

# %%
# %%ranks 4
import random

random.seed(rank)  # the global generator is in a different state on each rank
print("global generator:", [random.randint(1, 6) for _ in range(8)])

# %%
# %%ranks 4
dice = random.Random(2024)  # a separate generator, made from one number
print("own generator:   ", [dice.randint(1, 6) for _ in range(8)])

# %% [markdown]
# Could the sampler seed the global generator instead? All ranks would have the same order. But
# dropout draws from that generator, too.
#
# > **Predict, then run.** What do the dropout masks of the three epochs look like?
#
# <details><summary>Answer</summary>
#
# They are all the same, because in each epoch the sampler puts the generator into the same state.
# The model learns less, and nobody would look for the cause in the sampler.
#
# </details>

# %%
import torch


def order_with_a_side_effect() -> torch.Tensor:
    """Shuffle six samples, and change the global generator."""
    torch.manual_seed(3)
    return torch.randperm(6)


for epoch in range(3):
    order_with_a_side_effect()
    mask = torch.nn.functional.dropout(torch.ones(10), 0.5) > 0
    print(f"epoch {epoch}: dropout mask {mask.int().tolist()}")

# %% [markdown]
# ## Exercise: `PaddedDistributedSampler`
#
# Write the sampler of the first picture: contiguous chunks of the padded order, equally many on
# every rank. With `shuffle` the order is a permutation that depends on seed and epoch alone, and
# the global random generators stay out of it.
#
# Reference: [Data distribution](../phase1/GUIDELINES.md#data-distribution). For a hint, run
# `!gradsync hint PaddedDistributedSampler` in a new cell.

# %%
from collections.abc import Iterator, Sized

from torch.utils.data import DataLoader, Dataset, Sampler


class PaddedDistributedSampler(Sampler[int]):
    """The samples of one rank's share; every rank gets the same number."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        raise NotImplementedError("phase1/PaddedDistributedSampler")  # write this

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0."""
        raise NotImplementedError("phase1/PaddedDistributedSampler")  # write this

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples of the epoch."""
        raise NotImplementedError("phase1/PaddedDistributedSampler")  # write this

    def __len__(self) -> int:
        """Return the number of samples that every rank gets."""
        raise NotImplementedError("phase1/PaddedDistributedSampler")  # write this


# %%
from gradsync.notebook import check

check("PaddedDistributedSampler", PaddedDistributedSampler)

# %% [markdown]
# ## From samples to batches
#
# A `DataLoader` fetches the samples that a sampler names and forms batches. `batch_size` is what
# one rank takes per step; the *global batch* is what all ranks take together.
#
# > **Predict, then run.** 20 samples on 4 ranks, and `batch_size` is 2. How many steps does an
# > epoch have, and how large is each global batch?
#
# <details><summary>Answer</summary>
#
# Each rank has five samples, in batches of 2, 2 and 1. So three steps, with global batches of 8, 8
# and 4.
#
# </details>

# %%
# %%ranks 4
from torch.utils.data import DataLoader

my_share = list(range(5 * rank, 5 * rank + 5))  # 20 is a multiple of 4: no padding
for step, batch in enumerate(DataLoader(my_share, batch_size=2)):
    size = torch.tensor(len(batch))
    dist.all_reduce(size)
    print(f"step {step}: my batch {batch.tolist()!s:8}  global batch: {size} samples")

# %% [markdown]
# Now without a sampler: each rank builds a plain `DataLoader` over everything.
#
# > **Predict, then run.** What does each rank print? How would you notice this mistake in a real
# > run?
#
# <details><summary>Answer</summary>
#
# All print the same, so there is one line. Every rank trains on all samples. Nothing fails and the
# loss goes down, but an epoch takes as long as on one rank. You notice it only if you look at the
# samples or at the number of steps.
#
# </details>

# %%
# %%ranks 4
batches = [batch.tolist() for batch in DataLoader(list(range(8)), batch_size=2)]
print(len(batches), "steps:", batches)

# %% [markdown]
# ## Exercise: `create_dataloaders`
#
# Return this rank's training and validation loader: plain loaders for one rank, loaders over your
# sampler for several. The function must work before a process group exists, which is why rank and
# world size are arguments.
#
# Reference: [Data loaders](../phase1/GUIDELINES.md#data-loaders). For a hint, run `!gradsync hint
# create_dataloaders` in a new cell.


# %%
def create_dataloaders(
    train_dataset: Dataset,
    val_dataset: Dataset,
    batch_size: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    seed: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> tuple[DataLoader, DataLoader]:
    """Return this rank's training loader and validation loader."""
    raise NotImplementedError("phase1/create_dataloaders")  # write this


# %%
check("create_dataloaders", create_dataloaders)

# %% [markdown]
# When a check passes, copy your code to `phase1/template_data_loader.py`, where `gradsync check`
# tests it again and later exercises find it. (Or write it there in the first place; the check here
# and the one there are the same.)
#
# ## What to remember
#
# - Equal counts make all ranks call the same collectives. Padding makes the counts equal.
# - All ranks shuffle alike, because the order depends on seed and epoch only, and comes from the
#   sampler's own generator.
# - `batch_size` is per rank; the global batch is N times as large.
#
# **Next:** [3. Launching ranks](03_launching_ranks.ipynb)
