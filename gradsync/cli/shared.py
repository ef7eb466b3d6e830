"""What commands share: options, messages, printing a report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
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
