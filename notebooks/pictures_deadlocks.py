"""Pictures of deadlocks: a circle of waiting ranks, and five deadlocks side by side."""

from __future__ import annotations

from math import cos, pi, sin

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from gradsync.reports.timeline.palette import rank_colour

# For each kind, the calls of the four ranks. "~" marks a call that waits forever.
KINDS = {
    "1. a rank\nis missing": (["A", "~B"], ["A"], ["A"], ["A"]),
    "2. a different\norder": (["~A", "B"], ["~A", "B"], ["~B", "A"], ["~A", "B"]),
    "3. a different\nshape": (["~A[3]"], ["~A[3]"], ["~A[3]"], ["~A[2]"]),
    "4. a circle\nof sends": (["~to 1"], ["~to 2"], ["~to 3"], ["~to 0"]),
    "5. a loop of\ndifferent length": (["A", "~A", "A"], ["A", "~A"], ["A", "~A"], ["A"]),
}


def circle() -> None:
    """Draw four ranks that wait for each other in a circle."""
    figure, axes = plt.subplots(figsize=(4.2, 3.0), dpi=90)
    places = [(cos(pi / 2 - r * pi / 2) * 1.35, sin(pi / 2 - r * pi / 2)) for r in range(4)]
    for rank, (x, y) in enumerate(places):
        style = {"facecolor": "white", "edgecolor": rank_colour(rank), "linewidth": 2}
        box = FancyBboxPatch((x - 0.3, y - 0.13), 0.6, 0.26, boxstyle="round,pad=0.05", **style)
        axes.add_patch(box)
        axes.text(x, y, f"rank {rank}\nin send", ha="center", va="center", fontsize=8)
        there = places[(rank + 1) % 4]
        arrow = {"arrowstyle": "-|>", "shrinkA": 26, "shrinkB": 26, "linestyle": "--"}
        axes.annotate("", there, (x, y), arrowprops={**arrow, "connectionstyle": "arc3,rad=-0.25"})
    axes.text(0, 0, "waits for\nthe next rank\nto receive", ha="center", va="center", fontsize=9)
    axes.set_xlim(-1.9, 1.9)
    axes.set_ylim(-1.35, 1.35)
    axes.set_title("Every rank waits for the next: no rank receives", fontsize=10)
    axes.axis("off")
    _show(figure)


def five_kinds() -> None:
    """Draw the calls of four ranks in each kind of deadlock."""
    figure, grid = plt.subplots(1, 5, figsize=(7, 2.5), dpi=90, sharey=True)
    for axes, (title, calls) in zip(grid, KINDS.items(), strict=True):
        for rank, names in enumerate(calls):
            _lane(axes, rank, names)
        axes.set_title(title, fontsize=9)
        axes.set_xlim(-0.1, 3)
        axes.set_ylim(3.6, -0.6)
        axes.set_xticks([])
        axes.set_yticks(range(4), [f"rank {rank}" for rank in range(4)], fontsize=8)
        axes.tick_params(length=0)
        axes.set_xlabel("time →", fontsize=8)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
    figure.suptitle("In each kind, some call can never complete", fontsize=10)
    _show(figure)


def _lane(axes: Axes, rank: int, names: list[str]) -> None:
    left, stopped = 0.0, False
    for name in names:
        waits, text = name.startswith("~"), name.lstrip("~")
        width = 0.85 if len(text) == 1 else 1.6
        style = {"edgecolor": rank_colour(rank), "facecolor": "white", "linewidth": 1.2}
        if waits:
            style |= {"hatch": "////", "alpha": 0.9}
        if stopped:
            style |= {"linestyle": ":"}  # a call that this rank would make later
        axes.add_patch(Rectangle((left, rank - 0.3), width, 0.6, **style))
        back = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
        middle = left + width / 2
        axes.text(middle, rank, text, ha="center", va="center", fontsize=8, bbox=back)
        left += width + 0.12
        stopped = stopped or waits


def _show(figure: plt.Figure) -> None:
    figure.tight_layout()
    plt.show()
