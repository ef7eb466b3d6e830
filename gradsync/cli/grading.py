"""`gradsync grade` and `gradsync demo`: submissions held against the hidden tests."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradsync import bank
from gradsync.cli.activity import activity
from gradsync.cli.app import NO_SANDBOX, Out, Seed, app, show
from gradsync.course import find_course
from gradsync.errors import GraderError
from gradsync.reports import terminal
from gradsync.reports.text import amount, printable
from gradsync.submission.contents import listing
from gradsync.text import counted

if TYPE_CHECKING:
    from gradsync.gradebook import Entry, Outcome

DEMO_MISTAKE = "skips-missing-gradients"


@app.command(name="grade")
def grade_command(
    submissions: Annotated[
        list[Path], typer.Argument(help="Folders, .zip or .tar.gz; or a folder of those.")
    ],
    phase: Annotated[int | None, typer.Option(min=1, max=2, help="Grade this phase alone.")] = None,
    out: Out = Path("grades"),
    seed: Seed = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Take nothing over: grade all anew.")
    ] = False,
    unsafe: Annotated[
        bool,
        typer.Option(NO_SANDBOX, help="Run them as your own code, with your rights."),
    ] = False,
) -> None:
    """Grade submissions with the hidden tests.

    Writes OUT/gradebook.csv, and OUT/NAME/report.html and report.json for each submission. Run
    again, it grades what has changed and what it had not come to, and takes over the rest.

    [dim]gradsync grade ada.zip[/]                      one submission
    [dim]gradsync grade class/ --phase 1 --out week3[/]  a class
    """
    from gradsync.gradebook import entries_at, grade_class  # pytest and jinja2: `gradsync --help`
    from gradsync.ranks import sandbox  # starts without, and without numpy

    course = find_course()
    phases = (f"phase{phase}",) if phase else course.graded_phases("hidden")
    command = "gradsync grade" + f" --phase {phase}" * bool(phase) + f" {NO_SANDBOX}" * unsafe
    entries = entries_at(submissions, course, phases, out, command)
    if not unsafe:
        sandbox.check(course.root)
    outcomes = grade_class(
        entries, course, phases, out, seed=seed, fresh=fresh, sandboxed=not unsafe
    )
    try:
        _tell(outcomes, out)
        _tell_of_others(entries, out)
    except KeyboardInterrupt:
        again = "Run it again, without --fresh," if fresh else "Run the same again"
        print(f"\ngradsync: stopped. {again} to go on from here.", file=sys.stderr)
        raise


@app.command()
def demo(
    out: Out = Path("grades/demo"),
    seed: Seed = None,
) -> None:
    """Grade three submissions of phase 1: the solution, the template, and one with a mistake."""
    from gradsync.gradebook import Entry, grade_class

    course = find_course()
    known = {wrong.name: wrong for wrong in bank.wrong_submissions(course, "phase1")}
    right, empty = bank.reference(course), bank.untouched(course)
    wrong = known[DEMO_MISTAKE].submission(course)
    entries = [Entry(given, "gradsync demo") for given in (right, empty, wrong)]
    outcomes = grade_class(entries, course, ["phase1"], out, seed=seed, fresh=True, sandboxed=False)
    _tell(_announced(outcomes, [entry.submission.name for entry in entries]), out)
    print(f"Open {out / wrong.name / 'report.html'} to see the mistake rank by rank.")


def _announced(outcomes: Iterable[Outcome], names: Sequence[str]) -> Iterator[Outcome]:
    """Say which submission is being graded until its outcome is there."""
    each = iter(outcomes)
    for number, name in enumerate(names, 1):
        with activity() as now:
            now.show(f"grading {name}", f", {number} of {len(names)}")
            outcome = next(each)
        yield outcome
    yield from each


def _tell(outcomes: Iterable[Outcome], out: Path) -> None:
    """Show each as it is done, then what was done.

    Raises:
        GraderError: the grader failed on some; the others are graded.
    """
    from gradsync.handback import GRADEBOOK

    graded, known, lost = 0, 0, []
    for outcome in outcomes:
        name = printable(outcome.grade.submission)
        if outcome.problem is not None:
            lost.append(name)
            _tell_problem(name, outcome.problem)
        elif outcome.report is not None:
            graded += 1
            show(terminal.render, outcome.report)
            print(f"{outcome.page}\n")
        else:
            known += 1
            score, most = outcome.grade.score or 0.0, outcome.grade.max_score or 0.0
            print(f"{name}: {amount(score)} of {amount(most)} points, unchanged: {outcome.page}")
    kept = f", {known} unchanged and taken over (--fresh grades them anew)" if known else ""
    print(f"{out / GRADEBOOK}: {graded} graded{kept}")
    if lost:
        raise GraderError(f"on {', '.join(lost)}. Run the same again to have that graded, too.")


def _tell_of_others(entries: Sequence[Entry], out: Path) -> None:
    """Say whose lines in the gradebook are from earlier runs."""
    from gradsync.handback import lines_of_others

    if others := lines_of_others((entry.submission.name for entry in entries), out):
        print(f"{counted(len(others), 'line')} of other submissions kept: {listing(others)}")


def _tell_problem(name: str, problem: Exception) -> None:
    if not isinstance(problem, GraderError):  # one that nobody thought of
        traceback.print_exception(problem)
    print(f"gradsync: {name} could not be graded: {problem}\n", file=sys.stderr)
