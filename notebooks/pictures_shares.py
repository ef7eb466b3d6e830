"""Pictures of shares: which rank gets which sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch.utils.data import DistributedSampler

from gradsync.reports.timeline.palette import rank_colour


def shares(samples: int, ranks: int, shuffle: bool, epoch: int) -> Figure:
    """Draw each rank's contiguous share of an epoch's order, one row for each rank."""
    order = _padded_order(samples, ranks, shuffle, epoch)
    width = len(order) // ranks
    figure, axes = plt.subplots(figsize=(7, 0.9 + 0.3 * ranks), dpi=90)
    for position, sample in enumerate(order):
        row, column = divmod(position, width)
        _box(axes, column, row, str(sample), row, hatched=position >= samples)
    axes.set_xlim(-0.1, max(width, 12) + 0.1)
    axes.set_ylim(ranks + 0.05, -0.1)
    axes.set_yticks([row + 0.5 for row in range(ranks)], [f"rank {row}" for row in range(ranks)])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    extra = len(order) - samples
    padding = f"{extra} repeated as padding (hatched)" if extra else "no padding"
    axes.set_title(f"{samples} samples on {ranks} ranks: {width} on each, {padding}", fontsize=11)
    return _done(figure)


def seen(ranks: int, each: int) -> Figure:
    """Draw which of 24 positions have been seen after each rank has taken some samples.

    Args:
        ranks: a divisor of 24.
        each: the number of samples that every rank has taken.
    """
    positions = 24
    share = positions // ranks
    each = min(each, share)
    figure, axes = plt.subplots(figsize=(7, 1.6), dpi=90)
    for position in range(positions):
        for row, (rank, turn) in enumerate(
            [divmod(position, share), reversed(divmod(position, ranks))]
        ):
            taken = turn < each
            _box(axes, position, 1.5 * row, str(rank) if taken else "", rank, empty=not taken)
    axes.set_xlim(-0.1, positions + 0.1)
    axes.set_ylim(2.6, -0.1)
    axes.set_yticks([0.5, 2], ["chunks", "strides"])
    axes.set_xticks([p + 0.5 for p in range(0, positions, 4)], range(0, positions, 4))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("position in the epoch's order (the number in a box is the rank)")
    pieces = ranks if 0 < each < share else 1
    axes.set_title(
        f"After {each} samples on each rank: {pieces} piece{'s' * (pieces > 1)} with chunks, "
        "1 with strides",
        fontsize=11,
    )
    return _done(figure)


def how_often(drawn: Sequence[Sequence[int]], samples: int) -> Figure:
    """Draw how often the ranks have drawn each sample.

    Args:
        drawn: the samples of each rank.
        samples: the number of samples.
    """
    figure, axes = plt.subplots(figsize=(7, 2.3), dpi=90)
    top = [0] * samples
    for rank, mine in enumerate(drawn):
        for sample, times in Counter(mine).items():
            _box(axes, sample - 0.5, top[sample], f"rank {rank}", rank, height=times, small=True)
            top[sample] += times
    for sample, times in enumerate(top):
        if times == 0:
            axes.text(sample, 0.15, "never", ha="center", fontsize=9)
    axes.axhline(1, color="black", linewidth=1, linestyle="--")
    axes.set_xlim(-0.6, samples - 0.4)
    axes.set_ylim(0, max(top) + 0.3)
    axes.set_xticks(range(samples))
    axes.set_yticks(range(max(top) + 1))
    axes.set_xlabel("sample")
    axes.set_ylabel("times drawn")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        f"{top.count(0)} of {samples} samples are never drawn, "
        f"{sum(times > 1 for times in top)} more than once",
        fontsize=11,
    )
    return _done(figure)


def _padded_order(samples: int, ranks: int, shuffle: bool, epoch: int) -> list[int]:
    """Return the epoch's padded order, combined from the shares of PyTorch's sampler."""
    dealt = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(samples), ranks, rank, shuffle=shuffle, seed=0)
        sampler.set_epoch(epoch)
        dealt.append(list(sampler))
    return [sample for row in zip(*dealt, strict=True) for sample in row]


def _box(
    axes: Axes,
    left: float,
    top: float,
    text: str,
    rank: int,
    *,
    height: float = 1,
    hatched: bool = False,
    empty: bool = False,
    small: bool = False,
) -> None:
    """Draw a box with a text in a rank's colour."""
    colour = rank_colour(rank)
    axes.add_patch(
        Rectangle(
            (left + 0.04, top + 0.06),
            0.92,
            height - 0.12,
            facecolor="white" if empty or hatched else colour + "66",
            edgecolor="lightgrey" if empty else colour,
            hatch="////" if hatched else None,
            linewidth=1.3,
        )
    )
    middle, size = (left + 0.5, top + height / 2), 7 if small else 9
    label = axes.text(*middle, text, ha="center", va="center", fontsize=size)
    if hatched:
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def _done(figure: Figure) -> Figure:
    """Close a picture, so that the notebook shows it only if a cell returns or displays it."""
    figure.tight_layout()
    plt.close(figure)
    return figure
