"""Distinguish finished runs from interrupted ones, which continue from their checkpoint."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress

from gradsync.course.whole_files import write_whole
from gradsync.launch.placement import LaunchError
from gradsync.launch.settings import Settings
from gradsync.text import counted

# The settings that must not change during a training run, with their names in messages.
FIXED = {
    "phase": "phase",
    "trainer": "trainer",
    "batch_size": "--batch-size",
    "lr": "--lr",
    "samples": "--samples",
    "seed": "--seed",
}
REMEDY = "To start again, add --fresh. To keep this run as well, use another --out."


def is_finished(settings: Settings) -> bool:
    """Return whether the output folder has a complete run of at least `settings.epochs` epochs."""
    return settings.exported.is_file() and _epochs_done(settings) >= settings.epochs


def remove(settings: Settings) -> None:
    """Remove the files of a run."""
    outputs = (settings.history, settings.plot, settings.exported)
    for path in (settings.checkpoint, settings.rejected, settings.record, *outputs):
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)


def check_files(settings: Settings) -> None:
    """Check that a complete run was trained with the files as they are now.

    Raises:
        LaunchError: the files have changed, so the closing check of that run says nothing of them.
    """
    if _recorded(settings).get("files", _digest(settings)) != _digest(settings):
        raise LaunchError(
            f"The run in {settings.out} is complete, but the files in {settings.trainer.parent} "
            f"have changed since it started, and were not checked. {REMEDY}"
        )


def check(settings: Settings, *, same_trainer: bool = True) -> None:
    """Check that the folder's checkpoint or complete run, if any, has the same settings.

    A continued run may have more epochs, and a different number of ranks.

    Args:
        settings: the settings of this command.
        same_trainer: whether the trainer's path must be the same; between nodes, it may differ.

    Raises:
        LaunchError: the run has other settings, or more epochs.
    """
    if not (settings.checkpoint.exists() or settings.exported.is_file()):
        return
    asked, known = json.loads(settings.to_json()), _recorded(settings)
    changed = [
        f"{label} {known[name]}, now {asked[name]}"
        for name, label in FIXED.items()
        if name in known and known[name] != asked[name] and (name != "trainer" or same_trainer)
    ]
    if changed:
        raise LaunchError(
            f"The run in {settings.out} has other settings: {'; '.join(changed)}. "
            f"To continue it, use the same settings. {REMEDY}"
        )
    done = _epochs_done(settings)
    if done > settings.epochs:
        raise LaunchError(
            f"The run in {settings.out} has {counted(done, 'epoch')} already, more than "
            f"--epochs {settings.epochs}. To continue it, use a larger number. {REMEDY}"
        )


def check_continuation(settings: Settings) -> None:
    """Check the settings as `check` does, and record them.

    Raises:
        LaunchError: see `check`.
    """
    check(settings)
    asked = json.loads(settings.to_json())
    record = {name: asked[name] for name in FIXED} | {"files": _digest(settings)}
    write_whole(settings.record, json.dumps(record, indent=1).encode())


def completion(settings: Settings) -> str:
    """Return the message for a run that has no epochs left to train."""
    return (
        f"The run in {settings.out} is complete: {counted(settings.epochs, 'epoch')} with these "
        f"settings. Nothing was changed. To train further, use a larger --epochs. {REMEDY}"
    )


def _digest(settings: Settings) -> str:
    """Return a digest of the Python files in the trainer's folder."""
    digest = hashlib.sha256()
    for path in sorted(settings.trainer.parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _recorded(settings: Settings) -> dict[str, object]:
    """Return the settings of the checkpoint; an empty dictionary if they are not known."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(settings.record.read_text(encoding="utf-8")))
    return {}


def _epochs_done(settings: Settings) -> int:
    """Return the number of epochs in the history."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        history = json.loads(settings.history.read_text(encoding="utf-8"))
        return int(history[-1]["epoch"]) + 1
    return 0
