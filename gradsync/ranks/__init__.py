"""Run a function on N ranks and observe what each of them does.

Trusted, in the caller's process: `run` (the entry point), `task`, `supervise` (the main loop) with
a `member` for each rank, `crew` with its `launchers`: `fork` (which forks from the `warm` process)
and `spawn`; `sandbox` (with `namespaces` and `seccomp`), and `stacks`. These are pure: `standoff`
(proves deadlocks) and `lenient` (does not), `wording`, `failures`, `events`, `values`, `wire`,
`places` and `inputs`.
Untrusted, in the ranks: `worker`, `watch`, `handles`, `recorder`, `frames`.
On both sides: `dynamo` and `symbolic` defer imports that torch rarely needs, using `deferral`;
`late` imports in the warm process what ranks needed after all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradsync.ranks.crew import LauncherError

if TYPE_CHECKING:
    from gradsync.ranks.launchers import get_launcher
    from gradsync.ranks.run import RankFailure, run_ranks

__all__ = ["LauncherError", "RankFailure", "get_launcher", "run_ranks"]


def __getattr__(name: str) -> Any:
    """Import the trusted side when it is first used: the warm process does without it."""
    if name == "get_launcher":
        from gradsync.ranks import launchers

        return launchers.get_launcher
    if name in {"RankFailure", "run_ranks"}:
        from gradsync.ranks import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
