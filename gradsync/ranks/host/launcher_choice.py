"""Trusted: choose how ranks are started.

This module imports neither numpy nor torch, so a command can start the warm process before its own
slow imports.
"""

from __future__ import annotations

import functools
import sys
from typing import Literal, get_args

from gradsync.ranks.host.fork_launcher import ForkLauncher
from gradsync.ranks.host.launcher import Launcher
from gradsync.ranks.host.spawn_launcher import SpawnLauncher

LauncherName = Literal["fork", "spawn", "sandbox"]


def get_launcher(name: LauncherName | None = None) -> Launcher:
    """Return the launcher with that name, or the fastest one of this system."""
    if name is None:
        name = "fork" if sys.platform == "linux" else "spawn"
    if name not in get_args(LauncherName):
        raise ValueError(f"launcher must be 'fork', 'spawn' or 'sandbox', got {name!r}")
    if name != "spawn" and sys.platform != "linux":
        raise ValueError(f"the {name} launcher needs Linux: use launcher='spawn'")
    return _launchers(name)


@functools.cache
def _launchers(name: LauncherName) -> Launcher:
    return SpawnLauncher() if name == "spawn" else ForkLauncher(sandboxed=name == "sandbox")
