"""The command line: `gradsync check`, `hint`, `grade`, `demo`, `trace`, `doctor`, ...

Each module registers its commands with `app`. `exit_status` has `main`, which turns each outcome
of a command into an exit status.
"""

from __future__ import annotations

import sys

NEEDED = "gradsync's commands need more packages: pip install 'gradsync[course]'"


def main() -> None:
    """Run the command of this process's arguments."""
    try:
        from gradsync.cli import every_command, exit_status  # noqa: F401 - registers the commands
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("gradsync"):
            raise
        print(f"gradsync: {missing.name} is not installed. {NEEDED}", file=sys.stderr)
        sys.exit(2)
    exit_status.main()
