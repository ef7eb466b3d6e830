"""Run a function on N ranks and observe what each of them does.

`run` is the entry point. `task` describes a run, and `host` starts and supervises its ranks, with a
`sandbox` around them on request. `inside` runs in a rank: no trusted module imports it, except
`warm_program`, the program of the process that forks the ranks. Both sides use the `protocol`.
`deadlocks` proves from the ranks' events which rank waits for which, and `failures` describes how a
run failed. `fast` contains optimisations, which only save time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradsync.ranks.failures.rank_failure import RankFailure, RankWarning
from gradsync.ranks.host.launchers.choice import get_launcher, lacking
from gradsync.ranks.host.launchers.launcher import LauncherError
from gradsync.ranks.protocol.faults import kill, slow

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """Import the rest of the trusted side when it is first used: it needs numpy."""
    if name == "run_ranks":
        from gradsync.ranks import run

        return run.run_ranks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
