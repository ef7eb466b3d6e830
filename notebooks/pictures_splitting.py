"""Pictures of split models: memory for each stage of ZeRO, layers cut into parts, and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from schedules import Schedule
from torch import Tensor

from gradsync.reports.timeline.palette import rank_colour

DPI = 90
HATCHES = ("", "///", "...")


def draw_memory(bars: Mapping[str, Mapping[str, float]], ranks: int) -> Figure:
    """Draw bytes per parameter, one bar for each way to shard.

    Args:
        bars: for each way to shard, the bytes of each kind of data.
        ranks: the number of ranks, for the title.
    """
    figure, axes = plt.subplots(figsize=(7, 2.8), dpi=DPI)
    names = list(bars)[::-1]
    left = [0.0] * len(names)
    for number, kind in enumerate(next(iter(bars.values()))):
        widths = [bars[name][kind] for name in names]
        style = {"color": rank_colour((3, 0, 1)[number]), "edgecolor": "black", "alpha": 0.7}
        axes.barh(names, widths, left=left, label=kind, hatch=HATCHES[number], **style)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axes.text(total + 0.2, row, f"{total:.4g}", va="center")
    axes.set_xlim(0, 18)
    axes.set_xlabel("bytes per parameter on each rank (float32, Adam)")
    word = "rank" if ranks == 1 else "ranks"
    axes.set_title(f"{ranks} {word}: each stage of sharding needs less memory on a rank")
    axes.legend(frameon=False, loc="lower right")
    return _done(figure)


def draw_cuts(first: Tensor, second: Tensor) -> Figure:
    """Draw two weights for two ranks: the first is cut into rows, the second into columns."""
    figure, both = plt.subplots(1, 2, figsize=(7, 2.6), dpi=DPI)
    half_rows, half_columns = len(first) // 2, second.shape[1] // 2
    _draw_cut(both[0], first, lambda row, _: row // half_rows)
    _draw_cut(both[1], second, lambda _, column: column // half_columns)
    both[0].set_title("first weight: cut into rows")
    both[1].set_title("second weight: cut into columns")
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=rank_colour(rank), hatch=HATCHES[rank], alpha=0.35)
        for rank in range(2)
    ]
    figure.legend(handles, ["rank 0", "rank 1"], loc="lower center", ncols=2, frameon=False)
    return _done(figure)


def _draw_cut(axes: plt.Axes, weight: Tensor, owner: Callable[[int, int], int]) -> None:
    rows, columns = weight.shape
    for row in range(rows):
        for column in range(columns):
            rank = owner(row, column)
            style = {"facecolor": rank_colour(rank), "hatch": HATCHES[rank], "alpha": 0.35}
            axes.add_patch(plt.Rectangle((column, row), 1, 1, edgecolor="black", **style))
            text = f"{weight[row, column]:.0f}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", weight="bold")
    axes.set_xlim(-0.1, 4.1)
    axes.set_ylim(4.6, -0.1)
    axes.set_aspect("equal")
    axes.axis("off")


def draw_schedules(schedules: Mapping[str, Schedule]) -> Figure:
    """Draw schedules one below the other, with the share of the time that ranks wait."""
    stages = len(next(iter(schedules.values())).orders)
    height = 0.7 + len(schedules) * (0.55 + 0.28 * stages)
    options = {"figsize": (7, height), "dpi": DPI, "sharex": True, "squeeze": False}
    figure, rows = plt.subplots(len(schedules), 1, **options)
    for axes, (title, schedule) in zip(rows[:, 0], schedules.items(), strict=True):
        end = _draw_schedule(axes, schedule)
        worked = sum(schedule.length(kind) for order in schedule.orders for kind, _ in order)
        waits = 1 - worked / (end * stages)
        axes.set_title(f"{title}: {end} ticks, ranks wait {waits:.0%} of the time", fontsize=11)
    rows[-1, 0].set_xlim(left=0)
    rows[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    rows[-1, 0].set_xlabel("ticks (plain: forward; hatched: backward, which takes twice as long)")
    return _done(figure)


def _draw_schedule(axes: plt.Axes, schedule: Schedule) -> int:
    """Draw a schedule's blocks; return the tick in which the last one ends."""
    ends = []
    for (stage, kind, number), begin in schedule.begins().items():
        length = schedule.length(kind)
        style = {"color": rank_colour(stage), "hatch": "" if kind == "F" else "////"}
        axes.barh(stage, length, left=begin, edgecolor="black", alpha=0.55, linewidth=0.6, **style)
        place = {"ha": "center", "va": "center", "fontsize": 7}
        paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6}
        axes.text(begin + length / 2, stage, str(number), bbox=paper, **place)
        ends.append(begin + length)
    stages = range(len(schedule.orders))
    axes.set_yticks(stages, [f"rank {stage}" for stage in stages])
    axes.set_ylim(len(stages) - 0.5, -0.5)
    return max(ends)


def _done(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)  # otherwise the notebook would show it twice
    return figure
