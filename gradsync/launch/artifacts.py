"""The files that rank 0 writes beside the checkpoint: history, plot and exported model."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from gradsync.course.whole_files import write_whole
from gradsync.launch.rank_errors import LaunchedWrongly
from gradsync.launch.settings import Settings
from gradsync.text import full_stop

COMPARED = 256  # inputs for which the outputs of the exported model are checked
LOSSES = {"train_loss": "training", "val_loss": "validation", "loss": "training"}
OTHERS = (  # the key of an entry, title, factor and label of the second plot
    ("val_accuracy", "Validation accuracy", 100, "correct (%)"),
    ("tokens_per_second", "Speed", 1, "tokens per second"),
)
TOLERANCE = 1e-4  # of logits: the additions may be done in a different order


def read_history(settings: Settings) -> list[dict[str, Any]]:
    """Return the epochs recorded by earlier attempts."""
    with suppress(OSError, ValueError):
        return list(json.loads(settings.history.read_text(encoding="utf-8")))
    return []


def write_history(settings: Settings, history: list[dict[str, Any]]) -> None:
    """Write the history atomically."""
    write_whole(settings.history, json.dumps(history, indent=1).encode())


def reject(settings: Settings) -> str:
    """Rename the checkpoint of a run whose check failed, and return a sentence about it."""
    if not settings.checkpoint.exists():
        return ""
    settings.checkpoint.replace(settings.rejected)
    return (
        f" {settings.checkpoint} was renamed to {settings.rejected.name}: the same command starts "
        "from the beginning."
    )


def finish(settings: Settings, model: nn.Module, inputs: Tensor) -> None:
    """Plot the history and export the model; print a line for each file."""
    if history := read_history(settings):
        _plot(settings, history)
    _export(settings, model.cpu().eval(), inputs[:COMPARED].cpu())


def _plot(settings: Settings, history: list[dict[str, Any]]) -> None:
    """Plot the losses, and the validation accuracy or else the speed, over epochs or steps."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError:
        print("No plot: matplotlib is not installed. Run `pip install 'gradsync[course]'`.")
        return
    unit = "step" if "step" in history[0] else "epoch"
    marker = "o" if unit == "epoch" else ""
    numbers = [entry[unit] for entry in history]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, other = figure.subplots(1, 2)
    for name, label in LOSSES.items():
        if name in history[0]:
            losses.plot(numbers, [entry[name] for entry in history], marker=marker, label=label)
    losses.set(xlabel=unit, ylabel="cross-entropy loss", title="Loss")
    losses.legend()
    name, title, factor, label = next(one for one in OTHERS if one[0] in history[0])
    values = [factor * entry[name] for entry in history]
    other.plot(numbers, values, marker=marker, color="tab:green")
    other.set(xlabel=unit, ylabel=label, title=title)
    for axes in (losses, other):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.savefig(settings.plot, dpi=120)
    print(f"Plotted {settings.plot}")


def _export(settings: Settings, model: nn.Module, inputs: Tensor) -> None:
    """Export the model, load it back, and compare the outputs of both.

    Raises:
        LaunchedWrongly: the outputs differ.
    """
    # A clone, because a slice would store all inputs in the file.
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (inputs[:2].clone(),), dynamic_shapes=({0: batch},))
    torch.export.save(program, settings.exported)
    loaded = torch.export.load(settings.exported).module()
    with torch.no_grad():
        difference = float((loaded(inputs) - model(inputs)).abs().max())
    if not difference <= TOLERANCE:
        raise LaunchedWrongly(
            f"The outputs of the model exported to {settings.exported} differ from the outputs of "
            f"the trained model by {full_stop(f'{difference:g}')}"
        )
    print(
        f"Exported {settings.exported}; loaded again, its outputs differ by at most "
        f"{difference:.1g} on {len(inputs)} inputs",
        flush=True,
    )
