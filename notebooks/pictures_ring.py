"""Pictures of collectives: weights that stay apart, and an all-reduce around a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gradsync.reports.timeline.palette import rank_colour


class State(NamedTuple):
    """The chunks on every rank after a step of the ring."""

    step: int
    values: list[list[int]]  # of each rank, chunk by chunk
    arrived: dict[int, int]  # chunk -> the rank at which it arrived in this step


def walk(ranks: int) -> list[State]:
    """Send every chunk around the ring; return the states before the first and after each step.

    In each step, each chunk moves to the next rank. In the first ranks - 1 steps, the receiving
    rank adds its own numbers to the chunk. In the later steps, it keeps a copy of the chunk.
    """
    values = [[(chunk + 1) * 10**rank for chunk in range(ranks)] for rank in range(ranks)]
    states = [State(0, [list(row) for row in values], {})]
    for step in range(1, 2 * ranks - 1):
        arrived = {}
        for chunk in range(ranks):
            here = (chunk + step - 1) % ranks
            there = (here + 1) % ranks
            own = values[there][chunk] if step < ranks else 0
            values[there][chunk] = own + values[here][chunk]
            arrived[chunk] = there
        states.append(State(step, [list(row) for row in values], arrived))
    return states


def ring(ranks: int) -> Figure:
    """Draw all steps of the ring side by side, with the first pass above the second."""
    states = walk(ranks)
    figure, axes = plt.subplots(2, ranks, figsize=(7, 3.5), dpi=90)
    second = [states[ranks - 1], *states[ranks:]]
    for panel, state in zip(axes.flat, [*states[:ranks], *second], strict=True):
        _table(panel, state, fontsize=8 if ranks > 3 else 10)
        panel.set_title("start" if state.step == 0 else f"after step {state.step}", fontsize=9)
    for row, label in zip(axes[:, 0], ["first pass: add", "second pass: copy"], strict=True):
        row.set_ylabel(label, fontsize=9)
        row.set_yticks([rank + 0.5 for rank in range(ranks)], range(ranks), fontsize=8)
    figure.suptitle("First pass: a rank completes one sum (grey). Second pass: it gets all sums.")
    return _done(figure)


def ring_step(ranks: int, step: int) -> Figure:
    """Draw the chunks on every rank after a step, and which chunk arrived at which rank."""
    states = walk(ranks)
    state = states[min(step, len(states) - 1)]
    figure, axes = plt.subplots(figsize=(7, 0.9 + 0.36 * ranks), dpi=90)
    _table(axes, state, fontsize=10)
    for chunk, there in state.arrived.items():
        start, end = (chunk + 0.8, (there - 1) % ranks + 0.6), (chunk + 0.8, there + 0.3)
        arrow = {"arrowstyle": "->", "connectionstyle": f"arc3,rad={-0.2 if there else 0.1}"}
        axes.annotate("", xy=end, xytext=start, arrowprops=arrow)
    middles = [number + 0.5 for number in range(ranks)]
    axes.set_yticks(middles, [f"rank {rank}" for rank in range(ranks)])
    axes.set_xticks(middles, [f"chunk {chunk}" for chunk in range(ranks)])
    what = "added to its own" if 0 < state.step < ranks else "kept"
    title = f"Step {state.step} of {len(states) - 1}: each rank received one chunk and {what}"
    axes.set_title("Before the first step" if state.step == 0 else title, fontsize=11)
    return _done(figure)


def drift(history: Sequence[Sequence[float]], minimum: float) -> Figure:
    """Draw the weight of each rank, step by step, and the minimum of the loss.

    Args:
        history: the weights of all ranks, for each step.
        minimum: the best weight.
    """
    figure, axes = plt.subplots(figsize=(7, 2.6), dpi=90)
    for rank, weights in enumerate(zip(*history, strict=True)):
        style = {"marker": "os^D"[rank], "linestyle": ["-", "--", ":", "-."][rank]}
        axes.plot(weights, color=rank_colour(rank), markevery=5, **style)
        axes.text(len(weights) - 0.4, weights[-1], f"rank {rank}", va="center")
    axes.axhline(minimum, color="black", linewidth=1)
    axes.text(0, minimum, "minimum of the loss", va="bottom", fontsize=9)
    axes.set_xlim(-1, len(history) + 4)
    axes.set_xlabel("step")
    axes.set_ylabel("weight")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("The gap never closes, and no rank reaches the minimum", fontsize=11)
    return _done(figure)


def traffic(sizes: Sequence[int]) -> Figure:
    """Draw how much the busiest rank sends if one rank collects, and on the ring."""
    figure, axes = plt.subplots(figsize=(7, 2.8), dpi=90)
    star, round_about = [n - 1 for n in sizes], [2 * (n - 1) / n for n in sizes]
    axes.plot(sizes, star, "s--", color="black")
    axes.plot(sizes, round_about, "o-", color=rank_colour(0))
    axes.text(sizes[-1], star[-1], "  rank 0 collects", va="center")
    axes.text(sizes[-1], round_about[-1], "  ring", va="top")
    axes.axhline(2, color="grey", linewidth=1, linestyle=":")
    axes.text(sizes[-1] * 0.6, 2.2, "2 tensors", fontsize=9, color="dimgrey")
    axes.set_xticks(sizes)
    axes.set_xlim(sizes[0] - 0.5, sizes[-1] * 1.28)
    axes.set_xlabel("number of ranks N")
    axes.set_ylabel("tensors sent by\nthe busiest rank")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("On the ring no rank sends twice its tensor, whatever N is", fontsize=11)
    return _done(figure)


def _table(axes: Axes, state: State, fontsize: int) -> None:
    """Draw a row for each rank and a column for each chunk; new chunks have a thick frame."""
    ranks = len(state.values)
    for rank, row in enumerate(state.values):
        for chunk, value in enumerate(row):
            whole = value == (chunk + 1) * int("1" * ranks)
            fresh = state.arrived.get(chunk) == rank
            axes.add_patch(
                Rectangle(
                    (chunk + 0.06, rank + 0.08),
                    0.88,
                    0.84,
                    facecolor="#c8c8c8" if whole else "white",
                    edgecolor=rank_colour(rank) if fresh else "lightgrey",
                    linewidth=2.5 if fresh else 1,
                )
            )
            weight = "bold" if whole else "normal"
            middle = (chunk + 0.5, rank + 0.5)
            axes.text(*middle, str(value), ha="center", va="center", size=fontsize, weight=weight)
    axes.set_xlim(-0.05, ranks + 0.05)
    axes.set_ylim(ranks + 0.05, -0.05)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _done(figure: Figure) -> Figure:
    """Close a picture, so that the notebook shows it only if a cell returns or displays it."""
    figure.tight_layout()
    plt.close(figure)
    return figure
