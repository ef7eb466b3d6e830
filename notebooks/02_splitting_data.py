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
# In data-parallel training every rank works on its own part of the data.
# This notebook shows which rank gets which sample, what goes wrong if the parts overlap or differ
# in size, and how training can continue after an interruption.
#
# - **Afterwards you can** write a sampler that gives each rank its share, and build data loaders
#   with it.
# - **Time:** 20 minutes, and 40 more for the four exercises.
# - **You need:** [notebook 1](01_what_is_a_rank.ipynb), and `DataLoader` from PyTorch.

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

# %% [markdown]
# ## Which rank gets which sample?
#
# There are M samples and N ranks. The part of the samples that one rank works on is its *share*, or
# *shard*.
# One pass over all samples is an *epoch*. The order in which an epoch goes through the samples is
# the *epoch's order*.
#
# A *sampler* is an object that selects the samples of a rank. It yields the numbers of the samples,
# not the samples themselves.
#
# > **Predict, then run.** Ten is not a multiple of four. Every rank must get the same number of
# > samples, and no sample may be left out.
# > How many does each rank get?
#
# <details><summary>Answer</summary>
#
# Three: 10 / 4, rounded up. Four times three is twelve, so two samples are used twice.
# The order is *padded*: after its end we repeat its beginning, here the samples 0 and 1.
#
# </details>
#
# In a running notebook, move the sliders. Each rank takes one *contiguous* chunk: samples that
# follow each other in the order.

# %%
from controls import checkbox, choice, explore, slider
from pictures_02 import how_often, seen, shares

explore(
    shares,
    samples=slider("M, samples", 10, 1, 24),
    ranks=slider("N, ranks", 4, 1, 8),
    shuffle=checkbox("shuffle"),
    epoch=slider("epoch", 0, 0, 9),
)

# %% [markdown]
# Try these with the sliders, and predict first:
#
# - M = 8, N = 4. How much padding is there now?
# - M = 3, N = 8. There are fewer samples than ranks. What do ranks 3 to 7 get?
# - M = 1, N = 4. This is the shortest possible order. What does each rank get?
# - M = 10, N = 4, shuffled. Change the epoch. Then untick *shuffle*, and change the epoch again.
#
# <details><summary>Answers</summary>
#
# - There is no padding, because 8 is a multiple of 4.
# - The order is repeated as often as needed: ranks 3, 4 and 5 get samples 0, 1 and 2 again, and
#   ranks 6 and 7 get 0 and 1.
# - Every rank gets sample 0.
# - With shuffling, every epoch has a different order. Without shuffling, the order is the same in
#   every epoch.
#
# </details>
#
# Here is the case with fewer samples than ranks. Code that appends the beginning only *once* fails
# here: some ranks get no samples.

# %%
shares(samples=3, ranks=8, shuffle=False, epoch=0)

# %% [markdown]
# ## Why must the counts be equal?
#
# Why not give the ranks 3, 3, 2 and 2 samples, without any padding? In training, the ranks call
# `all_reduce` after each batch.
# We do the same here, with batches of one sample.
#
# > **Predict, then run.** What happens in the third step?
#
# <details><summary>Answer</summary>
#
# Ranks 2 and 3 have no third sample, so they leave the loop. Ranks 0 and 1 wait in `all_reduce` for
# ranks that never call it: a deadlock.
# Outside this notebook, the program would hang, without a message.
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
# With equal counts, every rank makes the same number of steps. That is the reason for the padding.

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
# A sampler that shuffles permutes all M samples first. Then it pads, and then it cuts the order
# into shares.
# Each rank has its own sampler, so each rank does all of this alone. The ranks do not communicate.
#
# In the next cell every rank shuffles 12 samples with PyTorch's global random generator, and takes
# three of them.
# The `manual_seed` imitates a real program, in which the ranks have already drawn different random
# numbers.
#
# > **Predict, then run.** Every rank gets three samples, so the counts are right. What is wrong?
#
# <details><summary>Answer</summary>
#
# Each rank cuts its chunk out of a different order. Some samples are drawn by several ranks, and
# others by none.
# There is no error message: the number of samples is right, and the loss goes down.
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
# So the order may depend only on numbers that are the same on all ranks. These are the *seed* and
# the *epoch*. `set_epoch(epoch)` sets a sampler's epoch. Epochs are counted from 0, and a new
# sampler starts at epoch 0.
#
# A *separate* random generator produces such an order. Look at the difference, with dice instead of
# samples:

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
# Could the sampler set the seed of the global generator instead? Then all ranks would have the same
# order, too. But dropout draws from the same generator:
#
# > **Predict, then run.** What do the dropout masks of the three epochs look like?
#
# <details><summary>Answer</summary>
#
# They are all the same. In each epoch, the sampler sets the global generator to the same state.
# The model drops the same neurons in every epoch, and learns less. You would hardly look for the
# cause in the sampler.
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
# Write the sampler of the first picture. Rank r gets the r-th contiguous chunk of the padded order,
# and every rank gets M/N samples, rounded up.
# With `shuffle`, the order is a permutation that depends on the seed and the epoch only. It must
# not depend on the global random generators, and must not change them.
# `len(sampler)` is the number of samples that this rank gets.
# Raise a `ValueError` that names the argument if `num_replicas` is less than 1, if the rank does
# not exist, or if the dataset is empty.
#
# Read [Data distribution](../phase1/GUIDELINES.md#data-distribution). For a hint, run `!gradsync
# hint PaddedDistributedSampler` in a new cell.

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
# A `DataLoader` fetches the samples that a sampler names, and puts them into batches.
# `batch_size` is the number of samples that one rank takes in one step. The *global batch* contains
# the samples that all ranks together take in that step.
#
# > **Predict, then run.** 20 samples on 4 ranks, and `batch_size` is 2. How many steps does an
# > epoch have, and how large is each global batch?
#
# <details><summary>Answer</summary>
#
# Each rank has five samples: batches of 2, 2 and 1. So there are three steps, with global batches
# of 8, 8 and 4.
# The last batch is smaller, and we keep it.
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
# Now we do the same without a sampler. Each rank builds a plain `DataLoader` over the complete
# dataset.
#
# > **Predict, then run.** What does each rank print? How would you notice this mistake in a real
# > training run?
#
# <details><summary>Answer</summary>
#
# All ranks print the same, so the output is one line, with the label *ranks 0-3*.
# Every rank trains on all samples. There is no error message and the loss goes down, but an epoch
# takes as long as on one rank.
# You notice it only if you look at the samples themselves, or at the number of steps.
#
# </details>

# %%
# %%ranks 4
batches = [batch.tolist() for batch in DataLoader(list(range(8)), batch_size=2)]
print(len(batches), "steps:", batches)

# %% [markdown]
# ## Exercise: `create_dataloaders`
#
# Return this rank's training loader and validation loader.
# With one rank, both are plain loaders. The training loader shuffles, in the same order for the
# same seed.
# With several ranks, both follow a `PaddedDistributedSampler`. Only the training loader's sampler
# shuffles.
# Use `batch_size` as given, for each rank. Keep the last, smaller batch.
# The function gets `rank` and `world_size` as arguments, so that it works before a process group
# exists.
#
# Read [Data loaders](../phase1/GUIDELINES.md#data-loaders). For a hint: `!gradsync hint
# create_dataloaders`.


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
# ## Strides, and continuing after an interruption
#
# A long training run stops from time to time: a job reaches its time limit, or a machine fails.
# Then it should continue where it stopped, in the middle of an epoch. It may have fewer ranks than
# before.
#
# For this, contiguous chunks are a poor choice. A *strided* share is better: with N = 4, rank 0
# takes positions 0, 4, 8, ... of the order, rank 1 takes 1, 5, 9, ..., and so on.
#
# > **Predict, then run.** 24 samples, 4 ranks, and each rank has taken 2 samples. Which positions
# > of the order have been seen, with chunks and with strides?
#
# <details><summary>Answer</summary>
#
# With chunks: 0–1, 6–7, 12–13 and 18–19. These are four pieces, and their positions depend on N.
# With strides: 0 to 7, in one piece. One number describes it: 8 samples have been seen. This number
# has the same meaning for any N.
#
# </details>

# %%
explore(
    seen,
    ranks=choice("N, ranks", 4, [2, 3, 4, 6, 8]),
    each=slider("samples of each rank", 2, 0, 12),
)

# %% [markdown]
# To resume, ignore the positions that have been seen. The remaining positions are a new, shorter
# order.
# Divide it among the *current* ranks by the same rules.
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
# 4 and 5. Padding repeats the beginning of the order, and the order now begins at 4.
# Samples 0 to 3 were used before the interruption. They are not a part of the remaining order.
#
# </details>
#
# ## Exercise: `ResumableDistributedSampler`
#
# Write the strided sampler. It pads and shuffles like the first sampler. With `drop_last` it cuts
# the order to a multiple of N instead of padding it.
# `resume(epoch, samples_seen)` sets the next pass to the rest of that epoch, divided among the
# current ranks.
# `set_epoch` with the same epoch keeps this position, and with a different epoch discards it. After
# the resumed pass, complete epochs follow.
# `len` is the number of samples that the next pass yields on this rank.
#
# Read [Resumable shares](../phase2/GUIDELINES.md#resumable-shares). For a hint: `!gradsync hint
# phase2/ResumableDistributedSampler`.


# %%
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
check("phase2/ResumableDistributedSampler", ResumableDistributedSampler)

# %% [markdown]
# ## Shares without padding
#
# Padding counts some samples twice. In training this does little harm, but in an evaluation it
# makes the accuracy wrong.
# In an evaluation we want each sample exactly once, and the counts may differ. (Notebook 4 shows
# how the ranks still avoid a deadlock.)
#
# A simple way: round M/N up, give each rank that many samples, and give the last ranks the
# remaining samples.
#
# > **Predict, then run.** 9 samples on 8 ranks. How many samples does each rank get in this way?
# > For which ranks do the others wait?
#
# <details><summary>Answer</summary>
#
# 2, 2, 2, 2, 1, 0, 0, 0. All others wait for the ranks with two samples, and three ranks have
# nothing to do.
# One rank must have two samples here. But a fair split has only one such rank.
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
# Return rank r's share of the samples 0 to M − 1 as a `range`. The shares are contiguous, do not
# overlap, and cover all samples.
# Their sizes differ by at most one, and the larger ones come first: 10 samples on 4 ranks give 3,
# 3, 2 and 2. A rank may get no samples.
#
# Read [Shares without padding](../phase2/GUIDELINES.md#shares-without-padding). For a hint:
# `!gradsync hint phase2/shard_without_padding`.


# %%
def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Return rank r's contiguous share of the samples, without any padding."""
    raise NotImplementedError("phase2/shard_without_padding")  # write this


# %%
check("phase2/shard_without_padding", shard_without_padding)

# %% [markdown]
# ## What to remember
#
# - With equal counts, all ranks call the same collectives. Padding makes the counts equal.
# - All ranks shuffle in the same order, because it depends on the seed and the epoch only.
# - A sampler uses its own random generator. It neither reads nor changes the global one.
# - `batch_size` is per rank. The global batch is N times as large.
# - With strides, one number describes the samples that all ranks have seen. So training can resume,
#   even with a different N.
#
# ## Next
#
# [3. All-reduce](03_all_reduce.ipynb): how ranks add up their tensors, by hand and then around a
# ring.
