"""`gradsync nbgrade`: grade an nbgrader class, several learners at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gradsync.cli.exit_status import GRADER_FAILED
from gradsync.cli.shared import Seed, imports_of, say
from gradsync.cores import available_cores
from gradsync.reports.text import amount, printable
from gradsync.text import in_list, listed

if TYPE_CHECKING:
    from gradsync.nbgrader.nbgrade import AutogradeOutcome


def nbgrade_command(
    course_folder: Annotated[Path, typer.Argument(help="The folder with nbgrader_config.py.")],
    assignment: Annotated[str, typer.Argument(help="The assignment, such as phase1.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Learners at a time. Default: one for each core.")
    ] = None,
    student: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Grade this learner only. May be repeated."),
    ] = None,
    seed: Seed = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Grade unchanged submissions again.")
    ] = False,
) -> None:
    """Autograde an nbgrader assignment, several learners at a time, into its gradebook.

    It works like `nbgrader autograde`, but cells of submissions run only in sandboxed ranks.
    A second run grades only new, changed and failed submissions.

    [dim]gradsync nbgrade notebooks/nbgrader phase1[/]             all learners
    [dim]gradsync nbgrade notebooks/nbgrader phase1 --jobs 8[/]    eight at a time
    [dim]gradsync nbgrade notebooks/nbgrader phase1 --student ada[/]  one of them
    """
    with imports_of("classes"):
        from gradsync.nbgrader.nbgrade import nbgrade
    count = jobs or available_cores()
    outcomes = nbgrade(
        course_folder, assignment, jobs=count, seed=seed, fresh=fresh, students=student or ()
    )
    try:
        _show_outcomes(outcomes)
    except KeyboardInterrupt:
        again = "Run the same command again to continue from here."
        print(f"\ngradsync: Stopped. {again}", file=sys.stderr)
        raise


def _show_outcomes(outcomes: Iterable[AutogradeOutcome]) -> None:
    """Show each outcome at once, then a summary; exit with status 3 if some failed."""
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    counts = {"graded": 0, "unchanged": 0, "failed": 0}
    failed = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        line = progress.add_task("autograding", total=None)
        for outcome in outcomes:
            counts[outcome.status] += 1
            name = printable(outcome.student)
            progress.update(line, total=outcome.total, advance=1, description=_result(outcome))
            if not console.is_terminal:
                print(_result(outcome), flush=True)
            for warning in outcome.warnings:
                text = f"  {name}: {printable(warning)}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
            if outcome.status == "failed":
                failed.append(name)
                text = f"{name} could not be graded: {printable(outcome.problem)}"
                say(text)
    print(f"{counts['graded']} graded, {counts['unchanged']} unchanged")
    if failed:
        text = f"No grade for {listed(map(in_list, failed))}. Run the same command again."
        say(text)
        raise typer.Exit(GRADER_FAILED)


def _result(outcome: AutogradeOutcome) -> str:
    name = printable(outcome.student)
    if outcome.status == "failed":
        return f"{name}: failed"
    score = f"{name}: {amount(outcome.points)} of {amount(outcome.max_points)} points"
    return score + (", unchanged" if outcome.status == "unchanged" else "")
