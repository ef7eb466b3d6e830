"""Plot a study: all-reduce over sizes, speed-up over ranks, and the smallest useful batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from gradsync.scale.strategies import GOOD
from gradsync.scale.study import Split, Study
from gradsync.scale.tables import bytes_shown, shown

DASHES = ("-", "--", ":", "-.")  # curves of strategies may cover each other


def plot(study: Study, path: Path) -> None:
    """Write a PNG with three plots, and two more if the model is a transformer."""
    draws = [_all_reduces, _speedups, _batches]
    if study.splits:
        draws += [_split_speedups, _split_memory]
    figure = Figure(figsize=(5 * len(draws), 4.6), layout="constrained")
    for draw, axes in zip(draws, figure.subplots(1, len(draws)), strict=True):
        draw(axes, study)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120, format="png")


def _all_reduces(axes: Any, study: Study) -> None:
    fit = study.fit
    fitted = set(fit.fitted)
    sizes = sorted({timing.size for timing in fit.timings})
    curve = np.geomspace(sizes[0], sizes[-1], 200)
    for number, ranks in enumerate(sorted({timing.ranks for timing in fit.timings})):
        colour = f"C{number}"
        seconds = [fit.network.all_reduce(size, ranks) for size in curve]
        axes.plot(curve, seconds, color=colour, label=f"{ranks} ranks, predicted")
        for used in (True, False):
            mine = [t for t in fit.timings if t.ranks == ranks and (t in fitted) is used]
            axes.plot(
                [timing.size for timing in mine],
                [timing.seconds for timing in mine],
                linestyle="",
                marker="o",
                color=colour,
                markerfacecolor=colour if used else "white",
            )
    axes.set(xscale="log", yscale="log", xlabel="size of the all-reduce")
    axes.set_xticks(sizes[:: 1 + len(sizes) // 5])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_shown(size)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: shown(seconds)))
    axes.minorticks_off()
    axes.set_title(f"All-reduce, {study.source}\nhollow points were not fitted")


def _speedups(axes: Any, study: Study) -> None:
    names = list(dict.fromkeys(forecast.strategy for forecast in study.forecasts))
    for name, dashes in zip(names, DASHES, strict=True):
        mine = [forecast for forecast in study.forecasts if forecast.strategy == name]
        ranks = [forecast.ranks for forecast in mine]
        axes.plot(ranks, [forecast.speedup for forecast in mine], dashes, lw=2, label=name)
    axes.plot(ranks, ranks, color="grey", lw=1, label="ideal")
    _log_ranks(axes)
    axes.set(yscale="log", ylabel="times the speed of 1 rank")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda times, _: f"{times:,g}×"))
    axes.set_title(f"Simulated speed-up\n{study.batch:,} samples on each rank")


def _batches(axes: Any, study: Study) -> None:
    for number, (name, paying) in enumerate(study.paying.items()):
        for dashes, label, read in (
            ("--", "faster than 1 rank", [batches.faster for batches in paying]),
            ("-", f"{GOOD:.0%} of the ideal", [batches.efficient for batches in paying]),
        ):
            found = [
                (batches.ranks, samples)
                for batches, samples in zip(paying, read, strict=True)
                if samples is not None
            ]
            axes.plot(
                [ranks for ranks, _ in found],
                [samples for _, samples in found],
                dashes,
                color=f"C{number}",
                marker=("o", "x")[number],
                label=f"{name}: {label}",
            )
    _log_ranks(axes)
    axes.set(yscale="log", ylabel="samples on each rank")
    axes.set_ylim(top=50 * axes.get_ylim()[1])  # room for the legend
    axes.set_title("The smallest batch with which\nmore ranks are faster")


def _split_speedups(axes: Any, study: Study) -> None:
    _splits(axes, study, lambda split: split.speedup)
    axes.set(yscale="log", ylabel="times the speed of 1 rank")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda times, _: f"{times:,g}×"))
    axes.set_title("Simulated speed-up of a transformer")


def _split_memory(axes: Any, study: Study) -> None:
    _splits(axes, study, lambda split: split.cost.states + split.cost.activations)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_shown(size)))
    axes.set_title("Memory of a rank\nstates and activations of the transformer")


def _splits(axes: Any, study: Study, read: Callable[[Split], float]) -> None:
    for number, way in enumerate(dict.fromkeys(split.way for split in study.splits)):
        mine = [split for split in study.splits if split.way == way]
        dashes = DASHES[number % len(DASHES)]
        ranks = [split.ranks for split in mine]
        axes.plot(ranks, [read(split) for split in mine], dashes, lw=2, marker=".", label=way)
    _log_ranks(axes)


def _log_ranks(axes: Any) -> None:
    axes.set(xlabel="ranks")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ranks, _: f"{ranks:,.0f}"))
