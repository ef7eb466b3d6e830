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

COMPARED = 256  # test images for which the outputs of the exported model are checked
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
    if not settings.checkpoint.is_file():
        return ""
    settings.checkpoint.replace(settings.rejected)
    return (
        f" {settings.checkpoint} was renamed to {settings.rejected.name}: the same command starts "
        "from the beginning."
    )


def finish(settings: Settings, model: nn.Module, images: Tensor) -> None:
    """Plot the history and export the model; print a line for each file."""
    if history := read_history(settings):
        _plot(settings, history)
    _export(settings, model.cpu().eval(), images[:COMPARED])


def _plot(settings: Settings, history: list[dict[str, Any]]) -> None:
    """Plot losses and accuracy over the epochs."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError:
        print("No plot: matplotlib is not installed. Run `pip install 'gradsync[course]'`.")
        return
    epochs = [entry["epoch"] for entry in history]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, accuracy = figure.subplots(1, 2)
    for name, label in (("train_loss", "training"), ("val_loss", "validation")):
        losses.plot(epochs, [entry[name] for entry in history], marker="o", label=label)
    percent = [100 * entry["val_accuracy"] for entry in history]
    accuracy.plot(epochs, percent, marker="o", color="tab:green")
    losses.set(xlabel="epoch", ylabel="cross-entropy loss", title="Loss")
    accuracy.set(xlabel="epoch", ylabel="correct (%)", title="Validation accuracy")
    losses.legend()
    for axes in (losses, accuracy):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.savefig(settings.plot, dpi=120)
    print(f"Plotted {settings.plot}")


def _export(settings: Settings, model: nn.Module, images: Tensor) -> None:
    """Export the model, load it back, and compare the outputs of both.

    Raises:
        LaunchedWrongly: the outputs differ.
    """
    # A clone, because a slice would store all images in the file.
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(model, (images[:2].clone(),), dynamic_shapes=({0: batch},))
    torch.export.save(program, settings.exported)
    loaded = torch.export.load(settings.exported).module()
    with torch.no_grad():
        difference = float((loaded(images) - model(images)).abs().max())
    if not difference <= TOLERANCE:
        raise LaunchedWrongly(
            f"The outputs of the model exported to {settings.exported} differ from the outputs of "
            f"the trained model by {full_stop(f'{difference:g}')}"
        )
    print(
        f"Exported {settings.exported}; loaded again, its outputs differ by at most "
        f"{difference:.1g} on {len(images)} test images",
        flush=True,
    )
