"""Register all commands, in the order of `gradsync --help`."""

from gradsync.cli import checking, hints, grading  # noqa: F401, I001
from gradsync.cli.classes import merge  # noqa: F401
from gradsync.cli import trace, doctor, templates, nbgrading  # noqa: F401
