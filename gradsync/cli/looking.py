"""`gradsync trace` and `gradsync doctor`: what a trainer does, and what this machine can."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gradsync.cli.app import app
from gradsync.course import find_course
from gradsync.submission import SubmissionError, read_submission


@app.command(name="trace")
def trace_command(
    submission: Annotated[Path | None, typer.Argument(help="Default: your own work.")] = None,
    phase: Annotated[int, typer.Option(min=1, max=2, help="Whose trainer.")] = 1,
    ranks: Annotated[int, typer.Option(min=1, max=8, help="How many.")] = 2,
    out: Annotated[Path, typer.Option(help="Where the trace is written.")] = Path("trace"),
) -> None:
    """See what a trainer does when: compute and collectives, rank by rank.

    Runs a few steps of `train`; writes OUT.svg, and OUT.json for https://ui.perfetto.dev.

    [dim]gradsync trace --phase 2[/]              your own trainer of phase 2, on 2 ranks
    [dim]gradsync trace ada.zip --ranks 4[/]      somebody's of phase 1, on 4
    """
    from gradsync.handback import write_trace  # jinja2, numpy and pytest: the other commands
    from gradsync.reports import spans  # start without
    from gradsync.tracing import trace
    from gradsync.verdicts import MissingFile

    course = find_course()
    chosen = f"phase{phase}"
    if submission is not None and not submission.exists():
        raise SubmissionError(f"{submission} does not exist. Name a folder, .zip or .tar.gz.")
    given = read_submission((submission or course.root).resolve(), course, phases=[chosen])
    try:
        seen = trace(given, course, chosen, ranks)
    except MissingFile as missing:
        raise SubmissionError(f"{submission or course.root}: {missing}") from None
    for path in write_trace(seen, out):
        print(path)
    print(spans.waiting(seen.events, seen.world_size))
    if seen.failure is not None:
        print(f"It did not come to its end: {seen.failure.diagnosis.explanation}")


@app.command(name="doctor")
def doctor_command() -> None:
    """See what holds on this machine: ranks, sandbox, data; exit status 1 if anything is amiss."""
    from gradsync.doctor import examine  # imports the engine: the other commands start without

    console, fine = Console(), True
    for finding in examine():
        mark, style = ("✓", "green") if finding.fine else ("✗", "red")
        console.print(f"[{style}]{mark}[/] [bold]{finding.what:8}[/] {escape(finding.told)}")
        fine = fine and finding.fine
    raise typer.Exit(0 if fine else 1)
