"""Trusted: choose how ranks are started, and whether this machine has the GPUs for them.

This module imports neither numpy nor torch, so a command can start the warm process before its own
slow imports.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Literal, get_args

from gradsync.ranks.host.launchers.fork import ForkLauncher
from gradsync.ranks.host.launchers.hash_seeds import HashSeedsLauncher
from gradsync.ranks.host.launchers.launcher import Launcher
from gradsync.ranks.host.launchers.spawn import SpawnLauncher
from gradsync.text import listed

LauncherName = Literal["fork", "hashes", "spawn", "sandbox"]


def get_launcher(name: LauncherName | None = None) -> Launcher:
    """Return the launcher with that name, or the fastest one of this system."""
    if name is None:
        name = "fork" if sys.platform == "linux" else "spawn"
    if name not in get_args(LauncherName):
        choices = listed(map(repr, get_args(LauncherName)), "or")
        raise ValueError(f"launcher must be {choices}, got {name!r}")
    if name != "spawn" and sys.platform != "linux":
        raise ValueError(f"the {name} launcher needs Linux: use launcher='spawn'")
    return _launchers(name)


def lacking(backend: str, world_size: int, launcher: str | None = None) -> str | None:
    """Return why a backend can't be used here, or None if it can."""
    if "nccl" not in backend:
        return None
    if launcher == "sandbox":
        return f"backend={backend!r} needs GPUs, and a sandbox has none: use another launcher"
    import torch  # only for this backend: the import takes a second

    count = torch.cuda.device_count()
    if count >= world_size:
        return None
    need = f"backend={backend!r} needs a GPU for each of {world_size} ranks"
    return f"{need}, and torch finds {count}"


@functools.cache
def _launchers(name: LauncherName) -> Launcher:
    _open_standard_streams()
    if name == "hashes":
        return HashSeedsLauncher()
    return SpawnLauncher() if name == "spawn" else ForkLauncher(sandboxed=name == "sandbox")


def _open_standard_streams() -> None:
    """Open the standard streams that the caller has closed; services often close stdin.

    Otherwise a socket for the ranks would get the number of a closed stream, and a rank's own
    standard stream would replace it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the free number
