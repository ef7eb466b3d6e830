"""The picture of the losses of the same training run with several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from gradsync.reports.timeline.palette import rank_colour

MARKERS = ("o", "s", "x", "^")


def same_losses(one: Sequence[float], others: Mapping[str, Sequence[float]]) -> None:
    """Draw the losses of one process as a line, and the losses of other methods as marks."""
    figure, axes = plt.subplots(figsize=(7, 2.9), dpi=90)
    steps = range(1, len(one) + 1)
    axes.plot(steps, one, color="black", linewidth=1, label="one process")
    for number, (label, losses) in enumerate(others.items()):
        # The methods mark different steps, so that no mark covers another.
        chosen = slice(2 * number, None, 2 * len(others))
        style = {"linestyle": "none", "markersize": 7, "markerfacecolor": "none"}
        axes.plot(
            steps[chosen],
            losses[chosen],
            color=rank_colour(number),
            marker=MARKERS[number],
            label=label,
            **style,
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss, mean of all ranks")
    axes.set_title(_title(one, others), fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    plt.show()


def _title(one: Sequence[float], others: Mapping[str, Sequence[float]]) -> str:
    differ = [
        name
        for name, losses in others.items()
        if max(abs(a - b) for a, b in zip(one, losses, strict=True)) > 0.01
    ]
    if differ:
        return f"Losses that differ from one process: {', '.join(differ)}"
    return "The same losses as one process, step by step"
