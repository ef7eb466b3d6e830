"""Register all commands, in the order of `gradsync --help`."""

from gradsync.cli import checking, hints, train, grading, trace, doctor, templates, nbgrading  # noqa: F401, I001
