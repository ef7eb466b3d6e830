"""Register all commands, in the order of `gradsync --help`."""

# isort: off
from gradsync.cli.learn import checking, hints, explaining, trace  # noqa: F401
from gradsync.cli.launch import train, reviewing, scaling  # noqa: F401
from gradsync.cli.teach import grading, grades, nbgrading  # noqa: F401
from gradsync.cli.launch import doctor  # noqa: F401
from gradsync.cli.teach import authoring  # noqa: F401
