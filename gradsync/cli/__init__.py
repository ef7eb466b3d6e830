"""The command line: `gradsync check`, `hint`, `explain`, `grade`, `demo`, `trace`, `doctor`, ...

Each module registers its commands with `app`. `exit_status` runs them, and turns each outcome
of a command into an exit status.
"""

from __future__ import annotations

import atexit
import gc
import sys

NEEDED = "gradsync's commands need more packages: pip install 'gradsync[course]'"


def main() -> None:
    """Run the command that this process's arguments name."""
    atexit.register(gc.freeze)  # otherwise Python collects torch's objects, for half a second
    if sys.argv[1:2] == ["check"] and "--help" not in sys.argv:
        _import_torch_for_ranks()
    try:
        from gradsync.cli import every_command, exit_status  # noqa: F401 - registers the commands
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("gradsync"):
            raise
        print(f"gradsync: {missing.name} is not installed. {NEEDED}", file=sys.stderr)
        sys.exit(2)
    sys.exit(exit_status.run())


def _import_torch_for_ranks() -> None:
    """Start the process that imports torch for the ranks, while this one imports the rest."""
    from gradsync.ranks import get_launcher

    get_launcher().warm_up()
