"""Pictures of buckets: measured overlap, the best number of buckets, and their contents."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from gradsync.reports.timeline.palette import rank_colour

HATCHES = ("", "////", "....")
# The parameters of a model in order: sizes in MiB, and the bucket of each.
PARAMETERS = (("embed", 6, 3), ("conv1", 1, 2), ("conv2", 2, 2), ("fc1", 3, 1), ("fc2", 2, 0))
CAP = 4  # MiB


def idle_or_busy(idle: Mapping[str, float], busy: Mapping[str, float]) -> None:
    """Draw the measured times of a step, if backward waits and if it computes."""
    figure, axes = plt.subplots(figsize=(7, 2.8), dpi=90)
    for number, (name, hatch) in enumerate(zip(idle, HATCHES, strict=True)):
        heights = [idle[name], busy[name]]
        places = [number * 0.27, 1 + number * 0.27]
        face = "white" if hatch else "lightgrey"
        style = {"edgecolor": "black", "facecolor": face, "hatch": hatch}
        bars = axes.bar(places, heights, width=0.24, label=name, **style)
        axes.bar_label(bars, fmt="%.0f", fontsize=9, padding=1)
    axes.set_xticks(
        [0.27, 1.27], ["backward waits (as for a GPU)", "backward on the same processor"]
    )
    axes.set_ylabel("time of a step in ms")
    axes.set_ylim(0, 1.35 * max(*idle.values(), *busy.values()))
    axes.set_title("Overlap hides communication if a processor is idle", fontsize=10)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
    _show(figure)


def bucket_curve(times: Mapping[int, float], after: float) -> None:
    """Draw the time of a step by the number of buckets, and mark the best."""
    best = min(times, key=lambda count: times[count])
    figure, axes = plt.subplots(figsize=(7, 2.8), dpi=90)
    axes.plot(times.keys(), times.values(), color="black", marker=".", linewidth=1)
    axes.plot(
        [best], [times[best]], "o", markersize=11, markerfacecolor="none", color=rank_colour(1)
    )
    axes.annotate(
        f"best: {best} buckets, {times[best]:.1f} ms",
        (best, times[best]),
        (best + 4, times[best] - 1.2),
        fontsize=9,
    )
    axes.axhline(40, color="grey", linestyle=":", linewidth=1)
    axes.text(40, 40.6, "backward alone", ha="right", fontsize=8, color="grey")
    axes.axhline(after, color="grey", linestyle="--", linewidth=1)
    axes.text(40, after + 0.6, "one message after backward", ha="right", fontsize=8, color="grey")
    axes.set_ylim(36, max(after, *times.values()) + 5)
    axes.set_xlabel("number of buckets")
    axes.set_ylabel("step in ms (computed)")
    axes.set_title("Neither one bucket nor one for each gradient is best", fontsize=10)
    _show(figure)


def filling() -> None:
    """Draw how five parameters fill buckets, from the last parameter to the first."""
    figure, axes = plt.subplots(figsize=(7, 2.4), dpi=90)
    left = 0.0
    gap = 0.5
    previous = None
    starts: dict[int, float] = {}
    for name, size, bucket in reversed(PARAMETERS):
        if previous is not None and bucket != previous:
            left += gap
        starts.setdefault(bucket, left)
        style = {"edgecolor": "black", "facecolor": "white", "hatch": ("", "//")[bucket % 2]}
        axes.add_patch(Rectangle((left, 0), size, 1, **style))
        back = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        text = f"{name}\n{size} MiB"
        axes.text(left + size / 2, 0.5, text, ha="center", va="center", fontsize=8, bbox=back)
        left += size
        previous = bucket
    for bucket, start in starts.items():
        total = sum(size for _, size, its in PARAMETERS if its == bucket)
        note = " (larger than the cap)" if total > CAP else ""
        label = f"bucket {bucket}{note}"
        axes.text(start + total / 2, 1.15, label, ha="center", fontsize=9)
    axes.annotate("", (left, -0.35), (0, -0.35), arrowprops={"arrowstyle": "->"})
    axes.text(0, -0.75, "order of backward: fc2 is the model's last parameter", fontsize=9)
    axes.set_xlim(-0.2, left + 0.2)
    axes.set_ylim(-0.95, 1.5)
    axes.set_title(f"A bucket is full when the next parameter would exceed {CAP} MiB", fontsize=10)
    axes.axis("off")
    _show(figure)


def _show(figure: plt.Figure) -> None:
    figure.tight_layout()
    plt.show()
