"""Run a function on N ranks and see what each did.

Trusted, in the caller's process: `run` (the way in), `task`, `supervise` (the loop), `crew` with
its launchers `fork` (and the `warm` process it forks from) and `spawn`, and, pure, `standoff`
(proves deadlocks), `failures`, `wording`, `events`, `values`, `wire`.
Untrusted, in the ranks: `worker`, `watch`, `frames`.
"""

from gradsync.ranks.run import RankFailure, get_launcher, run_ranks

__all__ = ["RankFailure", "get_launcher", "run_ranks"]
