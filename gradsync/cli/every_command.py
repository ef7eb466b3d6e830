"""Register all commands, in the order of `gradsync --help`."""

# isort: off
from gradsync.cli import checking, hints, trace, train, reviewing  # noqa: F401
from gradsync.cli import grading, release, doctor, templates, nbgrading  # noqa: F401
