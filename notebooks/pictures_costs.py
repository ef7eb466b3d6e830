"""Pictures of costs: measured and predicted times, and speed-ups up to 1,024 ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradsync.reports.timeline.palette import rank_colour

Times = Mapping[int, float]  # bytes -> seconds
UNITS = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"), (1, "B"))
LINES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"))  # different even without colours


def amount(size: float) -> str:
    """Return a number of bytes with a suitable unit, such as "40 kB"."""
    unit, name = next((pair for pair in UNITS if size >= pair[0]), UNITS[-1])
    return f"{size / unit:.3g} {name}"


def prediction(fitted: Times, held_out: Times, model: Callable[[float], float]) -> None:
    """Draw measured times with the model's line, and the errors of its predictions beside them."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.2), dpi=90, width_ratios=(3, 2))
    every = sorted([*fitted, *held_out])
    sizes = np.geomspace(every[0], every[-1], 200)
    left.plot(sizes, [1000 * model(size) for size in sizes], color="black", linewidth=1)
    _points(left, fitted, "used for the fit", marker="o", color="black")
    _points(left, held_out, "held out", marker="s", color=rank_colour(0), markerfacecolor="white")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("tensor in bytes")
    left.set_ylabel("time in ms")
    left.set_title("First flat, then proportional", fontsize=10)
    left.legend(frameon=False, fontsize=8)
    errors = {size: 100 * (model(size) / seconds - 1) for size, seconds in held_out.items()}
    _errors(right, errors)
    figure.tight_layout()
    plt.show()


def several(curves: Mapping[str, Times], models: Mapping[str, Callable[[float], float]]) -> None:
    """Draw measured times as marks and models as lines."""
    figure, axes = plt.subplots(figsize=(7, 2.9), dpi=90)
    for (label, times), (_, marker), number in zip(curves.items(), LINES, range(4), strict=False):
        _points(axes, times, label, marker=marker, color=rank_colour(number))
    sizes = np.geomspace(min(times), max(times), 200)
    for (label, model), (line, _) in zip(models.items(), LINES, strict=False):
        seconds = [1000 * model(size) for size in sizes]
        axes.plot(sizes, seconds, color="black", linestyle=line, linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("tensor in bytes")
    axes.set_ylabel("time in ms")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("With too few cores, the formula from 2 ranks is wrong for 4", fontsize=10)
    figure.tight_layout()
    plt.show()


def speed_ups(
    ranks: Sequence[int], curves: Mapping[str, Sequence[float]], title: str, limit: float = 0.0
) -> Figure:
    """Draw speed-ups by the number of ranks, and the efficiencies beside them."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3.3), dpi=90, width_ratios=(3, 2))
    left.plot(ranks, ranks, color="grey", linewidth=1, linestyle=(0, (1, 3)), label="ideal")
    for number, (label, values) in enumerate(curves.items()):
        line, marker = LINES[number]
        style = {"linestyle": line, "marker": marker, "markersize": 4, "linewidth": 1.2}
        left.plot(ranks, values, color=rank_colour(number), label=label, **style)
        parts = [100 * value / count for count, value in zip(ranks, values, strict=True)]
        right.plot(ranks, parts, color=rank_colour(number), **style)
        right.text(ranks[-1] * 1.2, parts[-1], f"{parts[-1]:.0f} %", fontsize=8, va="center")
    if limit:
        left.axhline(limit, color="black", linewidth=0.8)
        left.text(ranks[0], limit * 1.15, f"limit: {limit:.0f}", fontsize=8)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks[::2], [f"{count:,}" for count in ranks[::2]], fontsize=8)
        axes.set_xlabel("number of ranks")
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    left.set_ylabel("speed-up")
    left.legend(frameon=False, fontsize=8)
    right.set_ylim(0, 108)
    right.set_xlim(ranks[0] / 1.3, ranks[-1] * 8)
    right.set_ylabel("efficiency in %")
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    plt.close(figure)  # the cell shows it
    return figure


def _points(axes: Axes, times: Times, label: str, **style: str) -> None:
    milliseconds = [1000 * seconds for seconds in times.values()]
    axes.plot(times.keys(), milliseconds, linestyle="none", markersize=5, label=label, **style)


def _errors(axes: Axes, errors: Mapping[int, float]) -> None:
    places = range(len(errors))
    axes.barh(places, errors.values(), color="white", edgecolor=rank_colour(0), hatch="///")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(places, [amount(size) for size in errors], fontsize=8)
    reach = 1.6 * max(10.0, *map(abs, errors.values()))
    axes.set_xlim(-reach, reach)
    for place, error in zip(places, errors.values(), strict=True):
        side = {"ha": "left" if error >= 0 else "right", "va": "center", "fontsize": 8}
        axes.text(error + np.copysign(0.03 * reach, error), place, f"{error:+.0f}", **side)
    axes.set_xlabel("error in %")
    worst = max(map(abs, errors.values()))
    axes.set_title(f"Held-out sizes: within {worst:.0f} %", fontsize=10)
