"""The command line: `gradsync check`, `hint`, `grade`, `demo`, `trace`, `doctor`, ...

`app` holds the commands, each in a file with those that are like it, in the order of `--help`.
`ending` has `main`, which gives every way in which a command can end its exit status.
"""

from gradsync.cli import checking, hints, grading, looking, authoring, nbgrading  # noqa: F401, I001
from gradsync.cli.app import app
from gradsync.cli.ending import main

__all__ = ["app", "main"]
