"""`gradsync nbgrade`: an nbgrader class, several learners at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gradsync.cli.app import Seed, app
from gradsync.cli.ending import GRADER_FAILED
from gradsync.reports.text import amount, printable
from gradsync.submission import SubmissionError

if TYPE_CHECKING:
    from gradsync.nbgrader.nbgrade import Outcome


@app.command(name="nbgrade")
def nbgrade_command(
    course_folder: Annotated[Path, typer.Argument(help="Where nbgrader_config.py is.")],
    assignment: Annotated[str, typer.Argument(help="Such as phase1.")],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Learners at a time. Default: one for each core.")
    ] = None,
    seed: Seed = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Grade unchanged submissions again.")
    ] = False,
) -> None:
    """Autograde an nbgrader assignment, several learners at a time, into its gradebook.

    It does what `nbgrader autograde` does, and no cell of a submission runs outside of sandboxed
    ranks. Run again, it grades what has changed and what is left.

    [dim]gradsync nbgrade notebooks/nbgrader phase1[/]             all learners
    [dim]gradsync nbgrade notebooks/nbgrader phase1 --jobs 8[/]    eight at a time
    """
    try:
        from gradsync.nbgrader.nbgrade import nbgrade
    except ModuleNotFoundError as missing:
        raise SubmissionError(
            f"{missing.name} is not installed: `pip install 'gradsync[notebooks]'`"
        ) from None
    count = jobs or len(os.sched_getaffinity(0))
    outcomes = nbgrade(course_folder, assignment, jobs=count, seed=seed, fresh=fresh)
    try:
        _tell(outcomes)
    except KeyboardInterrupt:
        print("\ngradsync: stopped. Run the same again to go on from here.", file=sys.stderr)
        raise


def _tell(outcomes: Iterable[Outcome]) -> None:
    """Show each learner as done, then the sum; end with a status of its own if some failed."""
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
                text = f"gradsync: {name} is not graded: {printable(outcome.problem)}"
                print(text, file=sys.stderr, flush=True)
    print(f"{counts['graded']} graded, {counts['unchanged']} unchanged")
    if failed:
        text = f"{', '.join(failed)} not graded. Run the same again to have these graded, too."
        print(f"gradsync: {text}", file=sys.stderr)
        raise typer.Exit(GRADER_FAILED)


def _result(outcome: Outcome) -> str:
    name = printable(outcome.student)
    if outcome.status == "failed":
        return f"{name}: failed"
    score = f"{name}: {amount(outcome.points)} of {amount(outcome.max_points)} points"
    return score + (", unchanged" if outcome.status == "unchanged" else "")
