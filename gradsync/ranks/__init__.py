"""Run a function on N ranks and observe what each of them does.

Trusted, in the caller's process: `run` (the entry point), `task`, `supervise` (the main loop) with
a `member` for each rank, `crew` with its launchers `fork` (which forks from the `warm` process) and
`spawn`, `sandbox` (with `namespaces` and `seccomp`), and `stacks`. These are pure: `standoff`
(proves deadlocks) and `lenient` (does not), `wording`, `failures`, `events`, `values`, `wire`,
`places` and `inputs`.
Untrusted, in the ranks: `worker`, `watch`, `handles`, `recorder`, `frames`.
On both sides: `dynamo` and `symbolic` defer imports that torch rarely needs, using `deferral`;
`late` imports in the warm process what ranks needed after all.
"""

from gradsync.ranks.failures.rank_failure import RankFailure
from gradsync.ranks.host.launcher import LauncherError
from gradsync.ranks.host.launchers import get_launcher
from gradsync.ranks.run import run_ranks

__all__ = ["LauncherError", "RankFailure", "get_launcher", "run_ranks"]
