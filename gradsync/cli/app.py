"""What the commands share: the application, their options, and how a report is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gradsync.records import Report

NO_SANDBOX = "--unsafe-no-sandbox"

app = typer.Typer(
    name="gradsync",
    help="Distributed data-parallel training: learn it, and be told which mistake it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
Out = Annotated[Path, typer.Option(file_okay=False, help="Where grades are written.")]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Draw the tests' inputs from this seed; a report names its own."),
]


def show(render: Callable[..., str], report: Report) -> None:
    """Print a report as wide as the terminal is, in colour where it has colours."""
    console = Console()
    print(render(report, color=console.is_terminal, width=min(console.width, 100)))
