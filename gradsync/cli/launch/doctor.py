"""`gradsync doctor`: check what the course and the grader need on this machine."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape

from gradsync.cli.app import app


@app.command(name="doctor")
def doctor_command() -> None:
    """Check that ranks, sandbox and data work on this machine; exit status 1 if one does not."""
    from gradsync.doctor import examine  # imports the engine, which other commands don't need

    console, fine = Console(), True
    for finding in examine():
        mark, style = ("✓", "green") if finding.fine else ("✗", "red")
        console.print(f"[{style}]{mark}[/] [bold]{finding.what:8}[/] {escape(finding.text)}")
        fine = fine and finding.fine
    raise typer.Exit(0 if fine else 1)
