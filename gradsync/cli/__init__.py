"""The command line: `gradsync check`, `hint`, `grade`, `demo`, `trace`, `doctor`, ...

The modules register their commands with `app`, in the order of `--help`. `ending` has `main`, which
turns each outcome of a command into an exit status.
"""

from gradsync.cli import checking, hints, grading, looking, authoring, nbgrading  # noqa: F401, I001
from gradsync.cli.app import app
from gradsync.cli.ending import main

__all__ = ["app", "main"]
