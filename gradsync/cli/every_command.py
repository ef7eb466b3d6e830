"""Register all commands, in the order of `gradsync --help`."""

# isort: off
from gradsync.cli.learn import starting, checking, hints, explaining  # noqa: F401
from gradsync.cli.learn import solution, updating  # noqa: F401
from gradsync.cli.launch import train  # noqa: F401
from gradsync.cli.learn import trace  # noqa: F401
from gradsync.cli.launch import doctor, reviewing, scaling  # noqa: F401
from gradsync.cli.teach import grading, grades, nbgrading  # noqa: F401
from gradsync.cli.teach import authoring  # noqa: F401
