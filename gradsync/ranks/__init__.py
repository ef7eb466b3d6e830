"""Run a function on N ranks and observe what each of them does.

`run` is the entry point. `task` describes a run, and `host` starts and supervises its ranks, with a
`sandbox` around them on request. `inside` runs in a rank: no trusted module imports it, except
`warm_program`, the program of the process that forks the ranks. Both sides use the `protocol`.
`deadlocks` proves from the ranks' events which rank waits for which, and `failures` describes how a
run failed. `fast` contains optimisations, which only save time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradsync.errors import NO_POSIX, POSIX_ONLY

if TYPE_CHECKING:
    from gradsync.ranks.failures.rank_failure import RankFailure, RankWarning
    from gradsync.ranks.host.launchers.choice import get_launcher, lacking
    from gradsync.ranks.host.launchers.launcher import LauncherError
    from gradsync.ranks.protocol.faults import kill, slow
    from gradsync.ranks.run import run_ranks

__all__ = [
    "LauncherError",
    "RankFailure",
    "RankWarning",
    "get_launcher",
    "kill",
    "lacking",
    "run_ranks",
    "slow",
]
_MODULES = {
    "LauncherError": "host.launchers.launcher",
    "RankFailure": "failures.rank_failure",
    "RankWarning": "failures.rank_failure",
    "get_launcher": "host.launchers.choice",
    "kill": "protocol.faults",
    "lacking": "host.launchers.choice",
    "run_ranks": "run",
    "slow": "protocol.faults",
}


def __getattr__(name: str) -> Any:
    """Import a part of the engine when it is first used: other rooms need a small module of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name in POSIX_ONLY:
            raise ModuleNotFoundError(NO_POSIX, name=missing.name) from None
        raise
