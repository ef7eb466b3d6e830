"""The command line: `gradsync check`, `hint`, `explain`, `grade`, `demo`, `trace`, `doctor`, ...

`app` lists the commands. `exit_status` runs the application, and turns each outcome of a command
into an exit status.
"""

from __future__ import annotations

import atexit
import gc
import sys

from gradsync.errors import NO_POSIX, POSIX_ONLY

NEEDED = "gradsync's commands need more packages: pip install 'gradsync[course]'"


def main() -> None:
    """Run the command that this process's arguments name."""
    atexit.register(gc.freeze)  # otherwise Python collects torch's objects, for half a second
    try:
        if sys.argv[1:2] == ["check"] and "--help" not in sys.argv:
            _import_torch_for_ranks()
        from gradsync.cli import exit_status

        status = exit_status.run()
    except ModuleNotFoundError as missing:
        module = missing.name or ""
        if module.startswith("gradsync") or module in sys.stdlib_module_names - POSIX_ONLY:
            raise  # Python itself was built without a module such as _lzma
        text = NO_POSIX if module in POSIX_ONLY else f"{module} is not installed. {NEEDED}"
        print(f"gradsync: {text}", file=sys.stderr)
        status = 2
    sys.exit(status)


def _import_torch_for_ranks() -> None:
    """Start the process that imports torch for the ranks, while this one imports the rest."""
    from gradsync.ranks import get_launcher

    get_launcher().warm_up()
