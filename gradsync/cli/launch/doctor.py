"""`gradsync doctor`: check the requirements of the course, the grader and training."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gradsync.finding import Finding

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


def doctor_command(
    launch: Annotated[
        bool, typer.Option("--launch", help="Check the requirements of training on several ranks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    nproc: Annotated[
        int, typer.Option(min=1, help="With --launch: the ranks on this machine.")
    ] = 2,
    batch_size: Annotated[
        int, typer.Option(min=1, help="With --launch: samples of one rank in a batch.")
    ] = 50,
) -> None:
    """Check this machine; exit with status 1 if a requirement is not met.

    [dim]gradsync doctor[/]             ranks, sandbox and data, for the grader
    [dim]gradsync doctor --launch[/]    torch, network, master, cores and data, for training
    """
    # Each imports much that other commands don't need.
    if launch:
        from gradsync.launch.checks import examine as examine_launch

        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # gloo's errors are reported here
        examined = examine_launch(dict(os.environ), nproc, batch_size)
    else:
        from gradsync.doctor import examine

        examined = examine()
    findings = []
    for finding in examined:
        findings.append(finding)
        if not as_json:
            _show(finding, width=10 if launch else 8)
    fine = all(finding.status != "failed" for finding in findings)
    if as_json:
        print(json.dumps({"fine": fine, "checks": [*map(asdict, findings)]}, indent=1))
    raise typer.Exit(0 if fine else 1)


def _show(finding: Finding, width: int) -> None:
    mark, style = MARKS[finding.status]
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(width=width)
    table.add_column()
    text = escape(finding.found)
    if finding.status != "ok":
        if finding.why:
            text += f"\n[dim]Why: {escape(finding.why)}.[/]"
        if finding.remedy:
            text += f"\n[{style}]{escape(finding.remedy)}[/]"
    table.add_row(f"[{style}]{mark}[/]", f"[bold]{finding.name}[/]", text)
    Console().print(table)
