"""What commands share: options, messages, names of exercises, printing a report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gradsync.errors import UnusableInput

if TYPE_CHECKING:
    from gradsync.course.catalogue import Course, Exercise
    from gradsync.records import Report

NO_SANDBOX = "--unsafe-no-sandbox"
Out = Annotated[Path, typer.Option(file_okay=False, help="The folder for the grades.")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0, help="The seed of the tests' random inputs; each report shows the seed it used."
    ),
]


def say(text: str) -> None:
    """Print a message of a command to stderr, separate from its results on stdout."""
    print(f"gradsync: {text}", file=sys.stderr, flush=True)


def show(render: Callable[..., str], report: Report) -> None:
    """Print a report in the width of the terminal, in colour if the terminal supports it."""
    console = Console()
    print(render(report, color=console.is_terminal, width=min(console.width, 100)))


def one_named(course: Course, name: str, command: str) -> Exercise:
    """Return the first exercise with this name or id; print how to name the others.

    Raises:
        CourseError: there is none.
    """
    first, *others = course.named(name)
    for other in others:
        say(f"This is {first.id}. For {other.phase}: gradsync {command} {other.id}")
    return first


@contextmanager
def imports_of(extra: str) -> Iterator[None]:
    """Import modules that need the packages of an extra of gradsync.

    Raises:
        UnusableInput: a package is missing; the text says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise UnusableInput(
            f"{missing.name} is not installed. Run `pip install 'gradsync[{extra}]'`."
        ) from None
