"""`gradsync grade` and `gradsync demo`: grade submissions with the hidden tests."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradsync.cli.activity import activity
from gradsync.cli.app import NO_SANDBOX, Out, Seed, app, show
from gradsync.course import known_submissions
from gradsync.course.catalogue import find_course
from gradsync.errors import GraderError
from gradsync.reports import terminal
from gradsync.reports.text import amount, printable
from gradsync.submission.contents import listing
from gradsync.text import counted, listed

if TYPE_CHECKING:
    from gradsync.grading.classroom import Entry, Outcome


@app.command(name="grade")
def grade_command(
    submissions: Annotated[
        list[Path],
        typer.Argument(help="Submissions (folders, .zip, .tar.gz), or folders of submissions."),
    ],
    phase: Annotated[str | None, typer.Option(help="Grade this phase only, such as 1.")] = None,
    out: Out = Path("grades"),
    seed: Seed = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Grade all submissions again, unchanged ones too.")
    ] = False,
    unsafe: Annotated[
        bool,
        typer.Option(NO_SANDBOX, help="Run submissions without a sandbox, with your permissions."),
    ] = False,
) -> None:
    """Grade submissions with the hidden tests.

    Writes OUT/gradebook.csv, and report.html and report.json in OUT/NAME for each
    submission. A second run keeps finished grades. It grades only submissions
    that have changed or are missing.

    [dim]gradsync grade ada.zip[/]                      one submission
    [dim]gradsync grade class/ --phase 1 --out week3[/]  a class
    """
    from gradsync.grading.classroom import (  # pytest and jinja2: `gradsync --help`
        entries_at,
        grade_class,
    )
    from gradsync.ranks.sandbox import sandbox  # starts without, and without numpy

    course = find_course()
    phases = course.phases_to_grade("hidden", phase)
    chosen = "" if phase is None else f" --phase {phase}"
    command = f"gradsync grade{chosen}" + f" {NO_SANDBOX}" * unsafe
    entries = entries_at(submissions, course, phases, out, command)
    if not unsafe:
        sandbox.check(course.root)
    outcomes = grade_class(
        entries, course, phases, out, seed=seed, fresh=fresh, sandboxed=not unsafe
    )
    try:
        _show_outcomes(outcomes, out)
        _show_kept_lines(entries, out, course.phases)
    except KeyboardInterrupt:
        again = "command again without --fresh" if fresh else "same command again"
        print(f"\ngradsync: Stopped. Run the {again} to continue from here.", file=sys.stderr)
        raise


@app.command()
def demo(
    out: Out = Path("grades/demo"),
    seed: Seed = None,
) -> None:
    """Grade three submissions of one phase: the solution, the template, and one with a mistake."""
    from gradsync.grading.classroom import Entry, grade_class

    course = find_course()
    course.phases_to_grade("hidden")
    shown = known_submissions.shown_mistake(course)
    right, empty = known_submissions.reference(course), known_submissions.untouched(course)
    wrong = shown.submission(course)
    entries = [Entry(given, "gradsync demo") for given in (right, empty, wrong)]
    outcomes = grade_class(
        entries, course, [shown.phase], out, seed=seed, fresh=True, sandboxed=False
    )
    _show_outcomes(_announced(outcomes, [entry.submission.name for entry in entries]), out)
    print(f"Open {out / wrong.name / 'report.html'} to see the mistake rank by rank.")


def _announced(outcomes: Iterable[Outcome], names: Sequence[str]) -> Iterator[Outcome]:
    """Show which submission is being graded until its outcome is known."""
    each = iter(outcomes)
    for number, name in enumerate(names, 1):
        with activity() as now:
            now.show(f"grading {name}", f", {number} of {len(names)}")
            outcome = next(each)
        yield outcome
    yield from each


def _show_outcomes(outcomes: Iterable[Outcome], out: Path) -> None:
    """Show each outcome as it comes, then a summary.

    Raises:
        GraderError: the grader failed for some submissions; the others are graded.
    """
    from gradsync.grading.output_files import GRADEBOOK

    graded, known, lost = 0, 0, []
    for outcome in outcomes:
        name = printable(outcome.grade.submission)
        if outcome.problem is not None:
            lost.append(name)
            _show_problem(name, outcome.problem)
        elif outcome.report is not None:
            graded += 1
            show(terminal.render, outcome.report)
            print(f"{outcome.page}\n")
        else:
            known += 1
            score, most = outcome.grade.score or 0.0, outcome.grade.max_score or 0.0
            print(f"{name}: {amount(score)} of {amount(most)} points, unchanged, {outcome.page}")
    kept = f", {known} unchanged (--fresh grades them again)" if known else ""
    print(f"{out / GRADEBOOK}: {graded} graded{kept}")
    if lost:
        raise GraderError(f"no grade for {listed(lost)}. Run the same command again.")


def _show_kept_lines(entries: Sequence[Entry], out: Path, phases: Sequence[str]) -> None:
    """Show which lines of the gradebook come from earlier runs."""
    from gradsync.grading.output_files import lines_of_others

    names = [entry.submission.name for entry in entries]
    if others := lines_of_others(names, out, phases):
        kept = counted(len(others), "line")
        print(f"The gradebook keeps {kept} of other submissions: {listing(others)}")


def _show_problem(name: str, problem: Exception) -> None:
    if not isinstance(problem, GraderError):  # an unexpected one
        traceback.print_exception(problem)
    print(f"gradsync: {name} could not be graded: {problem}\n", file=sys.stderr)
