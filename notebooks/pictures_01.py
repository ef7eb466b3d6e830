"""Pictures of notebook 01: processes that wait, and the numbers of ranks on two machines."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradsync.reports.timeline.palette import rank_colour


def waiting(connected: Sequence[float]) -> Figure:
    """Draw when each process connected, and how long it waited for the last one.

    Args:
        connected: the seconds from the launch until each process connected.
    """
    last = max(connected)
    figure, axes = plt.subplots(figsize=(7, 2.4), dpi=90)
    for process, moment in enumerate(connected):
        colour = rank_colour(process)
        axes.barh(process, moment, color=colour, edgecolor="black", height=0.55)
        axes.barh(
            process,
            last - moment,
            left=moment,
            color="white",
            edgecolor=colour,
            hatch="////",
            height=0.55,
        )
        if last - moment > 0.08:
            axes.text(
                (moment + last) / 2,
                process,
                f"waits {last - moment:.2f} s",
                ha="center",
                va="center",
                fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            )
        if moment > 0.15:
            axes.text(moment / 2, process, "starts up", ha="center", va="center", fontsize=9)
    axes.axvline(last, color="black", linewidth=2)
    axes.text(last, (len(connected) - 1) / 2, "  all have\n  connected", va="center", fontsize=9)
    axes.set_yticks(range(len(connected)), [f"process {n}" for n in range(len(connected))])
    axes.set_xlim(0, last * 1.22)
    axes.set_ylim(len(connected) - 0.5, -0.5)
    axes.set_xlabel("seconds since the launch")
    axes.set_title(
        f"All continue when the last, process {list(connected).index(last)}, has connected"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)  # the notebook shows what a cell returns
    return figure


def two_machines() -> Figure:
    """Draw four ranks on two machines with two GPUs each."""
    figure, axes = plt.subplots(figsize=(7, 2.5), dpi=90)
    for machine in range(2):
        left = machine * 3.4
        axes.add_patch(Rectangle((left, 0), 3, 2.1, fill=False, linewidth=1.5))
        axes.text(left + 1.5, 2.2, f"machine node0{machine + 1}", ha="center", fontsize=10)
        for local in range(2):
            rank = 2 * machine + local
            corner = (left + 0.2 + 1.4 * local, 0.2)
            axes.add_patch(
                Rectangle(corner, 1.2, 1.7, facecolor=rank_colour(rank), alpha=0.3, linewidth=0)
            )
            axes.add_patch(
                Rectangle(corner, 1.2, 1.7, fill=False, edgecolor=rank_colour(rank), linewidth=2)
            )
            axes.text(
                corner[0] + 0.6,
                1.05,
                f"rank {rank}\nlocal rank {local}\nGPU {local}",
                ha="center",
                va="center",
                fontsize=10,
            )
    axes.annotate(
        "all four meet here:\nnode01, port 29500",
        xy=(0.4, 0.2),
        xytext=(0.0, -0.75),
        fontsize=9,
        arrowprops={"arrowstyle": "->"},
    )
    axes.set_xlim(-0.1, 6.6)
    axes.set_ylim(-0.8, 2.5)
    axes.axis("off")
    axes.set_title("Ranks count over all machines, local ranks on each machine")
    figure.tight_layout()
    plt.close(figure)  # the notebook shows what a cell returns
    return figure
