"""`gradsync doctor`: check what the course, the grader and training need on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradsync.cli.app import app

Row = dict[str, Any]  # "name", "status", "found", "why", "remedy"
MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


@app.command(name="doctor")
def doctor_command(
    launch: Annotated[
        bool, typer.Option("--launch", help="Check what training on ranks and nodes needs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    nproc: Annotated[
        int, typer.Option(min=1, help="With --launch: the ranks on this machine.")
    ] = 2,
    batch_size: Annotated[
        int, typer.Option(min=1, help="With --launch: samples of one rank in a batch.")
    ] = 50,
) -> None:
    """Check this machine; exit status 1 if something that is needed does not work.

    [dim]gradsync doctor[/]             ranks, sandbox and data, for the grader
    [dim]gradsync doctor --launch[/]    torch, network, master, cores and data, for training
    """
    rows = _launching(nproc, batch_size) if launch else _grading()
    results = []
    for row in rows:
        results.append(row)
        if not as_json:
            _show(row, details=launch)
    fine = all(row["status"] != "failed" for row in results)
    if as_json:
        print(json.dumps({"fine": fine, "checks": results}, indent=1))
    raise typer.Exit(0 if fine else 1)


def _grading() -> Iterable[Row]:
    from gradsync.doctor import examine  # imports the engine, which other commands don't need

    for finding in examine():
        status = "ok" if finding.fine else "failed"
        yield {"name": finding.what, "status": status, "found": finding.text}


def _launching(nproc: int, batch_size: int) -> Iterable[Row]:
    from dataclasses import asdict

    from gradsync.launch.checks import examine

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # gloo's errors are reported here
    for finding in examine(dict(os.environ), nproc, batch_size):
        yield asdict(finding)


def _show(row: Row, *, details: bool) -> None:
    mark, style = MARKS[row["status"]]
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(width=10 if details else 8)
    table.add_column()
    text = escape(row["found"])
    if details and row["status"] != "ok":
        text += f"\n[dim]Why: {escape(row['why'])}.[/]\n[{style}]{escape(row['remedy'])}[/]"
    table.add_row(f"[{style}]{mark}[/]", f"[bold]{row['name']}[/]", text)
    Console().print(table)
