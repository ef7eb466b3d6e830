"""Register all commands, in the order of `gradsync --help`."""

from gradsync.cli import checking, hints  # noqa: F401, I001
from gradsync.cli.launching import train  # noqa: F401
from gradsync.cli import grading, trace, doctor  # noqa: F401
from gradsync.cli.launching import scale  # noqa: F401
from gradsync.cli import templates, nbgrading  # noqa: F401
