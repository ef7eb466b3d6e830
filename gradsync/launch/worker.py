"""The program of each rank: `python -m gradsync.launch.worker SETTINGS`, started by the agent.

It runs the course's `support.training`, which calls the functions of this course's trainers.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from types import ModuleType

from gradsync.course.support import TRAINED, support_of
from gradsync.launch import artifacts, links
from gradsync.launch.progress import Progress
from gradsync.launch.rank_errors import (
    CheckFailed,
    LaunchedWrongly,
    describe,
    follows_another,
    status_of,
)
from gradsync.launch.settings import Settings
from gradsync.ranks.fast import dynamo

NOTICED_SECONDS = 1.0  # the agent detects within this time that a process has ended


def main() -> None:
    """Run one rank; if it fails, write a message to stderr, and exit with its status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: the agent prints how to continue
    settings = Settings.from_json(sys.argv[1])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    status = 0
    try:
        links.test(settings) if settings.test_links else _train(settings)
    except Exception as error:  # noqa: BLE001 - a learner's file may raise any error
        _report(error, settings)
        status = status_of(error)
        if follows_another(error):
            time.sleep(NOTICED_SECONDS)  # so that the agent names the rank that ended first
    sys.stdout.flush()
    os._exit(status)  # the destructor of a gloo group that has failed can hang


def _report(error: Exception, settings: Settings) -> None:
    """Print why this rank failed; all ranks fail in the closing check, and rank 0 prints why."""
    rank, text = os.environ["RANK"], describe(error, settings)
    if isinstance(error, CheckFailed):
        if rank != "0":
            return
        text += artifacts.reject(settings)
    print(f"[Rank {rank}] {text}", file=sys.stderr, flush=True)


def _train(settings: Settings) -> None:
    dynamo.defer()  # the import of torch's compiler delays the start, and each restart
    # Import this before a process group exists: see `main` of the trainers.
    import torch.distributed.nn.functional  # noqa: F401

    progress = Progress(settings)
    with support_of(settings.course):
        recipes = importlib.import_module(TRAINED)
        model, inputs = recipes.run(settings, _imported(settings), progress)
    if progress.is_rank_0:
        artifacts.finish(settings, model, inputs)


def _imported(settings: Settings) -> ModuleType:
    """Import the trainer; as with `python FILE`, its folder is searched first."""
    sys.path.insert(0, str(settings.trainer.parent))
    try:
        return importlib.import_module(settings.trainer.stem)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("torch"):
            raise
        raise LaunchedWrongly(
            f"{settings.trainer} imports {missing.name}, which is not in {settings.trainer.parent} "
            "and is not installed. Install it, or put its file into that folder."
        ) from None


if __name__ == "__main__":
    main()
