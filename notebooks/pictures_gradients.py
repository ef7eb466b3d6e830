"""Pictures of gradients: loss curves with and without mistakes, and padded accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from gradsync.reports.timeline.palette import rank_colour

UNTRAINED = 2.303  # ln 10: the loss of a model that gives ten digits the same probability
WORST = 5.0  # higher losses are cut off


def same_curve(one: Sequence[float], many: Sequence[float]) -> None:
    """Draw the losses of one process as a line, and the losses of eight ranks as marks."""
    figure, axes = plt.subplots(figsize=(7, 2.8), dpi=90)
    steps = range(1, len(one) + 1)
    axes.plot(steps, one, color="black", label="one process, 64 samples per step")
    label = "8 ranks, 8 samples each per step"
    style = {"linestyle": "none", "marker": "o", "markersize": 7, "markerfacecolor": "none"}
    axes.plot(steps[::4], many[::4], color=rank_colour(0), label=label, **style)
    axes.set_title("Eight ranks with averaged gradients follow one process exactly", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("loss on all digits")
    axes.legend(frameon=False, fontsize=9)
    _show(figure)


def beside_one_process(one: Sequence[float], mistakes: Mapping[str, Sequence[float]]) -> None:
    """Draw the losses of rank 0 with each of six mistakes, and the losses of one process."""
    figure, grid = plt.subplots(2, 3, figsize=(7, 3.5), dpi=90, sharex=True, sharey=True)
    for axes, (name, losses) in zip(grid.flat, mistakes.items(), strict=True):
        _compare(axes, one, losses)
        axes.set_title(name, fontsize=9)
    grid[0, 0].annotate("one process", (42, one[41]), (20, 0.35), fontsize=8)
    grid[0, 1].annotate("with the mistake", (45, 2.3), (9, 2.75), fontsize=8, color=rank_colour(0))
    for axes in grid[1]:
        axes.set_xlabel("step", fontsize=9)
    for axes in grid[:, 0]:
        axes.set_ylabel("loss", fontsize=9)
    figure.suptitle(
        "Mistakes with 8 ranks: some curves look harmless (loss of rank 0)", fontsize=10
    )
    _show(figure)


def sum_against_mean(right: Sequence[float], summed: Sequence[float], ranks: int) -> None:
    """Draw the loss if gradients are summed, and if they are averaged."""
    figure, axes = plt.subplots(figsize=(7, 2.2), dpi=90)
    _compare(axes, right, summed)
    axes.axhline(UNTRAINED, color="grey", linewidth=0.8, linestyle=":")
    axes.text(len(right), UNTRAINED + 0.08, "untrained", fontsize=8, color="grey", ha="right")
    axes.plot([], [], color="black", label="mean (any number of ranks)")
    axes.plot([], [], color=rank_colour(0), linestyle="--", label=f"sum over {ranks} ranks")
    axes.set_title(f"{ranks} ranks: the sum makes steps {ranks} times as large", fontsize=10)
    axes.set_xlabel("step")
    axes.set_ylabel("loss on all digits")
    axes.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)
    _show(figure)


def padded_accuracy(padded: Mapping[int, float], true: float) -> None:
    """Draw the accuracy that an evaluation with padding reports, by the number of ranks."""
    figure, axes = plt.subplots(figsize=(7, 2.6), dpi=90)
    axes.axhline(100 * true, color="black", linestyle="--", linewidth=1)
    axes.text(16.4, 100 * true + 0.4, f"each sample once: {true:.0%}", fontsize=9, ha="right")
    heights = [100 * value for value in padded.values()]
    axes.plot(padded.keys(), heights, marker="o", color=rank_colour(0), linewidth=1)
    axes.set_ylim(min(heights) - 2, 100 * true + 3)
    axes.set_xticks(list(padded))
    axes.set_title("With padding the accuracy depends on the number of ranks", fontsize=10)
    axes.set_xlabel("number of ranks")
    axes.set_ylabel("accuracy in %")
    _show(figure)


def _compare(axes: Axes, one: Sequence[float], losses: Sequence[float]) -> None:
    steps = range(1, len(one) + 1)
    axes.plot(steps, one, color="black", linewidth=1.2)
    axes.plot(steps, losses, color=rank_colour(0), linestyle="--", linewidth=1.6)
    axes.set_ylim(0, WORST if max(losses) > 3 else 3.2)
    axes.tick_params(labelsize=8)


def _show(figure: plt.Figure) -> None:
    figure.tight_layout()
    plt.show()
