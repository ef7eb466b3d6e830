"""The command line: `gradsync check`, `hint`, `grade`, `demo`, `trace`, `templates`."""

from __future__ import annotations

import secrets
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from gradsync import bank
from gradsync.course import Course, CourseError, find_course
from gradsync.grading import GraderError, grade
from gradsync.handback import write_gradebook, write_report, write_trace
from gradsync.records import Report
from gradsync.reports import progress, spans, terminal
from gradsync.submission import (
    Submission,
    SubmissionError,
    find_submissions,
    read_submission,
    submission_name,
)
from gradsync.templates import templates

UNUSABLE_ARGUMENTS = 2
GRADER_FAILED = 3
DEMO_MISTAKE = "skips-missing-gradients"

app = typer.Typer(
    name="gradsync",
    help="Distributed data-parallel training: learn it, and be told which mistake it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
Seed = Annotated[
    int | None, typer.Option(help="Draw the tests' inputs from this seed; a report names its own.")
]


@app.command(name="check")
def check_command(
    exercise: Annotated[
        str | None, typer.Argument(help="One exercise, such as average_gradients; or all.")
    ] = None,
    seed: Seed = None,
) -> None:
    """See how far you are: runs the visible tests on your files, a line an exercise.

    [dim]gradsync check[/]                      everything, and what to do next
    [dim]gradsync check average_gradients[/]    one exercise, with every detail
    """
    course = find_course()
    chosen = course.find(exercise) if exercise is not None else None
    phases = (chosen.phase,) if chosen else course.graded_phases("visible")
    own = read_submission(course.root, course, "your work")
    done = True  # all that comes before
    for phase in phases:
        report = grade(
            own,
            course,
            phases=[phase],
            seed=_seed(seed),
            audience="visible",
            exercise=chosen.id if chosen else None,
        )
        if not done and all(verdict.status == "unfinished" for verdict in report.verdicts):
            continue  # not begun yet, and not due
        done = all(verdict.status == "passed" for verdict in report.verdicts)
        again = f"gradsync check {exercise}" if chosen else "gradsync check"
        _show(terminal.render if chosen else progress.render, replace(report, command=again))


@app.command()
def hint(
    exercise: Annotated[str, typer.Argument(help="The exercise, such as average_gradients.")],
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="How many hints to show.")
    ] = 1,
) -> None:
    """Get a hint, the gentlest first.

    [dim]gradsync hint average_gradients[/]         the first
    [dim]gradsync hint average_gradients -n 2[/]    one more
    """
    course = find_course()
    chosen = course.find(exercise)
    console = Console()
    console.print(f"[bold]{chosen.name}[/]: {escape(chosen.goal)}\n")
    for index, text in enumerate(chosen.hints[:number], 1):
        console.print(f"[bold]{index}.[/] {escape(text)}\n")
    if number < len(chosen.hints):
        console.print(f"[dim]one more: gradsync hint {exercise} -n {number + 1}[/]")
    console.print(f'[dim]the idea: {chosen.phase}/GUIDELINES.md, "{chosen.guide}"[/]')


@app.command(name="grade")
def grade_command(
    submissions: Annotated[
        list[Path], typer.Argument(help="Folders, .zip or .tar.gz; or a folder of those.")
    ],
    phase: Annotated[int | None, typer.Option(min=1, max=2, help="Grade this phase alone.")] = None,
    out: Annotated[Path, typer.Option(help="Where grades are written.")] = Path("grades"),
    seed: Seed = None,
) -> None:
    """Grade submissions with the hidden tests.

    Writes OUT/gradebook.csv, and OUT/NAME/report.html and report.json for each submission.

    [dim]gradsync grade ada.zip[/]                      one submission
    [dim]gradsync grade class/ --phase 1 --out week3[/]  a class
    """
    course = find_course()
    phases = (f"phase{phase}",) if phase else course.graded_phases("hidden")
    for chosen in phases:
        course.suite("hidden", chosen)
    paths = [found for path in submissions for found in find_submissions(path, course)]
    again = "gradsync grade" + (f" --phase {phase}" if phase else "")
    named = [
        (f"{again} {shlex.quote(str(path))}", read_submission(path, course, name, phases))
        for path, name in _unique_names(paths).items()
    ]
    reports = _grade_all(named, course, phases, seed, out)
    print(f"{write_gradebook(reports, out)}: {len(reports)} graded")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where grades are written.")] = Path("grades/demo"),
    seed: Seed = None,
) -> None:
    """Grade three submissions of phase 1: the solution, the template, and one with a mistake."""
    course = find_course()
    known = {wrong.name: wrong for wrong in bank.wrong_submissions(course, "phase1")}
    right, empty = bank.reference(course), bank.untouched(course)
    wrong = known[DEMO_MISTAKE].submission(course)
    reports = _grade_all(
        [("gradsync demo", given) for given in (right, empty, wrong)],
        course,
        ("phase1",),
        seed,
        out,
    )
    write_gradebook(reports, out)
    print(f"Open {out / wrong.name / 'report.html'} to see the mistake rank by rank.")


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
    from gradsync.tracing import trace  # numpy and pytest: the other commands start without
    from gradsync.verdicts import MissingFile

    course = find_course()
    chosen = f"phase{phase}"
    given = read_submission(submission or course.root, course, phases=[chosen])
    try:
        seen = trace(given, course, chosen, ranks)
    except MissingFile as missing:
        raise SubmissionError(f"{missing} is not in {submission or course.root}") from None
    for path in write_trace(seen, out):
        print(path)
    print(spans.waiting(seen.events, seen.world_size))
    if seen.failure is not None:
        print(f"It did not come to its end: {seen.failure.diagnosis.explanation}")


@app.command(name="templates")
def templates_command(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a template is out of date.")
    ] = False,
) -> None:
    """Generate the templates from the solutions (for authors of the course)."""
    course = find_course()
    stale = []
    for path, text in templates(course):
        target = course.root / path
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            target.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'out of date, run `gradsync templates`' if check else 'written'}")
    raise typer.Exit(1 if check and stale else 0)


def main() -> None:
    """Run the command line; every way in which it can end has its exit status."""
    try:
        app()
    except (CourseError, SubmissionError) as problem:
        _fail(UNUSABLE_ARGUMENTS, str(problem))
    except GraderError as problem:
        _fail(GRADER_FAILED, f"the grader itself failed: {problem}")
    except OSError as problem:
        _fail(GRADER_FAILED, f"the grader itself failed: {problem}")
    except Exception:  # noqa: BLE001 - whatever is left is ours, and must not look like a grade
        traceback.print_exc()
        _fail(GRADER_FAILED, "the grader itself failed, see above; no submission is to blame")


def _fail(status: int, text: str) -> NoReturn:
    print(f"gradsync: {text}", file=sys.stderr)
    raise SystemExit(status)


def _grade_all(
    submissions: Iterable[tuple[str, Submission]],
    course: Course,
    phases: tuple[str, ...],
    seed: int | None,
    out: Path,
) -> list[Report]:
    """Grade each, named with the command that repeats it; show and write its report."""
    reports = []
    for command, submission in submissions:
        report = grade(submission, course, phases=phases, seed=_seed(seed))
        report = replace(report, command=command)
        _show(terminal.render, report)
        folder = write_report(report, out)
        print(f"{folder / 'report.html'}\n")
        reports.append(report)
    return reports


def _show(render: Callable[..., str], report: Report) -> None:
    console = Console()
    print(render(report, color=console.is_terminal, width=min(console.width, 100)))


def _seed(given: int | None) -> int:
    return secrets.randbelow(2**31) if given is None else given


def _unique_names(paths: list[Path]) -> dict[Path, str]:
    """Return each path's name; two that are alike are told apart by a number."""
    names: dict[Path, str] = {}
    for path in dict.fromkeys(paths):
        name = plain = submission_name(path)
        count = 1
        while name in names.values():
            count += 1
            name = f"{plain}-{count}"
        names[path] = name
    return names
