"""The parts that all commands share: the application, common options, printing a report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradsync.records import Report

LEARNING, ENGINEERING, TEACHING = "Learn", "Your own scripts and machines", "Teach a course"
NO_SANDBOX = "--unsafe-no-sandbox"

app = typer.Typer(
    name="gradsync",
    help="Learn distributed data-parallel training, and find out which mistake you made.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
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
