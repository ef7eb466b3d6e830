"""Run a function on N ranks and see what each did.

Trusted, in the caller's process: `run` (the way in), `task`, `supervise` (the loop) with a `member`
a rank, `crew` with its launchers `fork` (and the `warm` process it forks from) and `spawn`,
`sandbox` (and the kernel's `namespaces` and `seccomp`) for other people's code, `stacks`, and,
pure, `standoff` (proves deadlocks) and `lenient` (does not), `wording`, `failures`, `events`,
`values`, `wire`, `places`, `inputs`.
Untrusted, in the ranks: `worker`, `watch`, `handles`, `recorder`, `frames`.
On both sides: `dynamo` and `symbolic` put off what torch imports to no avail, each by a `deferral`,
and `late` is what comes all the same.
"""

from gradsync.ranks.crew import LauncherError
from gradsync.ranks.run import RankFailure, get_launcher, run_ranks

__all__ = ["LauncherError", "RankFailure", "get_launcher", "run_ranks"]
