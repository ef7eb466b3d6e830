"""Tell a finished run from an interrupted one, which continues from its checkpoint."""

from __future__ import annotations

import json
from contextlib import suppress

from gradsync.launch.settings import Settings


def is_finished(settings: Settings) -> bool:
    """Tell whether the output folder has a complete run of at least so many epochs."""
    if not settings.exported.is_file():
        return False
    with suppress(OSError, ValueError, LookupError, TypeError):
        history = json.loads(settings.history.read_text(encoding="utf-8"))
        return int(history[-1]["epoch"]) + 1 >= settings.epochs
    return False


def remove(settings: Settings) -> None:
    """Remove the files of a run; another node may do the same at the same time."""
    for path in (settings.checkpoint, settings.history, settings.plot, settings.exported):
        path.unlink(missing_ok=True)
