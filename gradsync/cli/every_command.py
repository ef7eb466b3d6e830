"""Register all commands, in the order of `gradsync --help`."""

from gradsync.cli import checking, hints, grading, trace, doctor, templates, release, nbgrading  # noqa: F401, I001
