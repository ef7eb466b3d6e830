"""A picture of launched ranks: their numbers on two machines."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradsync.reports.timeline.palette import rank_colour


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
