"""Pictures of accumulation: memory, the global batch, loss curves and learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from gradsync.reports.timeline.palette import rank_colour

DPI = 90
HATCHES = ("", "///", "...")
MIB = 2**20
EPOCH = 60_000  # samples


def draw_memory(weights: int, gradients: int, activations: Mapping[int, int]) -> Figure:
    """Draw the memory of one step as bars, one for each number of microbatches.

    Args:
        weights: bytes of the weights.
        gradients: bytes of the gradients.
        activations: bytes of the activations, by number of microbatches.
    """
    figure, axes = plt.subplots(figsize=(7, 3), dpi=DPI)
    labels = [str(parts) for parts in activations]
    bottom = [0.0] * len(labels)
    layers = {
        "weights": [weights] * len(labels),
        "gradients": [gradients] * len(labels),
        "activations": list(activations.values()),
    }
    for (name, sizes), hatch, rank in zip(layers.items(), HATCHES, (3, 0, 1), strict=True):
        heights = [size / MIB for size in sizes]
        style = {"color": rank_colour(rank), "hatch": hatch, "edgecolor": "black"}
        axes.bar(labels, heights, bottom=bottom, width=0.6, label=name, alpha=0.7, **style)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.set_title("More microbatches need less memory, but only for activations")
    axes.set_xlabel("number of microbatches in a batch of 1,024 samples")
    axes.set_ylabel("memory (MiB)")
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], frameon=False)
    return _done(figure)


def draw_update(ranks: int, microbatch: int, microbatches: int) -> Figure:
    """Draw the samples of one update: a row for each rank, a box for each microbatch.

    Args:
        ranks: the number of ranks.
        microbatch: the number of samples in a microbatch.
        microbatches: the number of microbatches of each rank in one update.
    """
    figure, axes = plt.subplots(figsize=(7, 1.3 + 0.28 * ranks), dpi=DPI)
    for rank in range(ranks):
        for number in range(microbatches):
            style = {"color": rank_colour(rank), "edgecolor": "black", "alpha": 0.55}
            axes.barh(rank, 0.95, left=number, **style)
            axes.text(number + 0.475, rank, str(microbatch), ha="center", va="center", fontsize=8)
    axes.axvspan(microbatches, microbatches + 0.15, color="black")
    axes.set_xlim(0, max(microbatches, 8) + 0.3)
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    batch = ranks * microbatch * microbatches
    updates = -(-EPOCH // batch)  # rounded up
    axes.set_title(f"{batch:,} samples in an update, {updates:,} updates in an epoch", fontsize=11)
    passes = f"each rank runs {updates * microbatches:,} backward passes in an epoch"
    axes.set_xlabel(f"number: samples in a microbatch; black: synchronisation\n{passes}")
    return _done(figure)


def draw_curves(curves: Mapping[str, tuple[int, Sequence[float]]]) -> Figure:
    """Draw the loss as a function of the number of samples seen.

    Args:
        curves: for each label, the batch size and the loss after each update.
    """
    figure, axes = plt.subplots(figsize=(7, 3.2), dpi=DPI)
    styles = (("-", ""), (":", "s"), ("--", "o"))
    for number, (label, (batch, losses)) in enumerate(curves.items()):
        line, marker = styles[number % len(styles)]
        samples = [batch * update for update in range(1, len(losses) + 1)]
        style = {"linestyle": line, "marker": marker, "markersize": 4}
        axes.plot(samples, losses, color=rank_colour(number), label=label, **style)
    axes.set_title("A batch 16 times as large needs a learning rate 16 times as large")
    axes.set_xlabel("samples seen")
    axes.set_ylabel("loss on all training samples")
    axes.set_ylim(0, 2.6)
    axes.legend(frameon=False, loc="center right")
    return _done(figure)


def draw_updates(needed: Mapping[int, Mapping[float, int | None]]) -> Figure:
    """Draw a table of the updates that each batch size needs with each learning rate.

    Args:
        needed: updates by batch size and learning rate; None if the loss stayed too high.
    """
    batches = list(needed)
    rates = list(needed[batches[0]])
    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=DPI)
    for row, batch in enumerate(batches):
        best = min(updates for updates in needed[batch].values() if updates is not None)
        for column, rate in enumerate(rates):
            updates = needed[batch][rate]
            text = "–" if updates is None else str(updates)
            is_best = updates == best
            shade = rank_colour(0) if is_best else "white"
            box = plt.Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=shade, alpha=0.35)
            axes.add_patch(box)
            weight = "bold" if is_best else "normal"
            axes.text(column, row, text, ha="center", va="center", weight=weight)
    axes.set_xticks(range(len(rates)), [str(rate) for rate in rates])
    axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_ylim(len(batches) - 0.5, -0.5)
    axes.set_title("Updates until the loss is below 0.2 (bold: the fewest in the row)")
    axes.set_xlabel("learning rate (–: not within 300 updates)")
    axes.set_ylabel("batch size (samples)")
    return _done(figure)


def _done(figure: Figure) -> Figure:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    plt.close(figure)  # otherwise the notebook would show it twice
    return figure
