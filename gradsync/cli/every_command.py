"""Register all commands, in the order of `gradsync --help`."""

from gradsync.cli import checking, hints, grading, trace, doctor  # noqa: F401, I001
from gradsync.cli.staff import release, export, templates  # noqa: F401
from gradsync.cli import nbgrading  # noqa: F401
