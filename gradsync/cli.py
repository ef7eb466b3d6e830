"""The command line: `gradsync check`, `hint`, `grade`, `demo`, `trace`, `doctor`, ..."""

from __future__ import annotations

import atexit
import gc
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
from gradsync.course import CourseError, find_course
from gradsync.gradebook import Entry, FolderInUse, Outcome, entries_at, grade_class
from gradsync.grading import GraderError, draw_seed, grade
from gradsync.handback import GRADEBOOK, write_trace
from gradsync.ranks import sandbox
from gradsync.ranks.sandbox import SandboxError
from gradsync.records import Report
from gradsync.reports import progress, spans, terminal
from gradsync.reports.text import amount, printable
from gradsync.submission import SubmissionError, read_submission
from gradsync.templates import templates

UNUSABLE_ARGUMENTS = 2
GRADER_FAILED = 3
DEMO_MISTAKE = "skips-missing-gradients"
NO_SANDBOX = "--unsafe-no-sandbox"
UNSAFE = f"With {NO_SANDBOX} submissions run with your rights, as your own code would."

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
            seed=draw_seed() if seed is None else seed,
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
    course = find_course()
    known = {wrong.name: wrong for wrong in bank.wrong_submissions(course, "phase1")}
    right, empty = bank.reference(course), bank.untouched(course)
    wrong = known[DEMO_MISTAKE].submission(course)
    entries = [Entry(given, "gradsync demo") for given in (right, empty, wrong)]
    outcomes = grade_class(entries, course, ["phase1"], out, seed=seed, fresh=True, sandboxed=False)
    _tell(outcomes, out)
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
    given = read_submission((submission or course.root).resolve(), course, phases=[chosen])
    try:
        seen = trace(given, course, chosen, ranks)
    except MissingFile as missing:
        raise SubmissionError(f"{missing} is not in {submission or course.root}") from None
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
    atexit.register(gc.freeze)  # else Python goes through all of torch for garbage, for a second
    try:
        app()
    except (CourseError, SubmissionError, FolderInUse) as problem:
        _fail(UNUSABLE_ARGUMENTS, str(problem))
    except SandboxError as problem:
        _fail(GRADER_FAILED, f"no sandbox for other people's code: {problem}. {UNSAFE}")
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


def _tell(outcomes: Iterable[Outcome], out: Path) -> None:
    """Show each as it is done, then what was done.

    Raises:
        GraderError: the grader failed on some; the others are graded.
    """
    graded, known, lost = 0, 0, []
    for outcome in outcomes:
        name = printable(outcome.grade.submission)
        if outcome.problem is not None:
            lost.append(name)
            _tell_problem(name, outcome.problem)
        elif outcome.report is not None:
            graded += 1
            _show(terminal.render, outcome.report)
            print(f"{outcome.page}\n")
        else:
            known += 1
            score, most = outcome.grade.score or 0.0, outcome.grade.max_score or 0.0
            print(f"{name}: {amount(score)} of {amount(most)} points, unchanged: {outcome.page}")
    kept = f", {known} unchanged and taken over (--fresh grades them anew)" if known else ""
    print(f"{out / GRADEBOOK}: {graded} graded{kept}")
    if lost:
        raise GraderError(f"on {', '.join(lost)}. Run the same again to have that graded, too.")


def _tell_problem(name: str, problem: Exception) -> None:
    if not isinstance(problem, GraderError):  # one that nobody thought of
        traceback.print_exception(problem)
    print(f"gradsync: {name} could not be graded: {problem}\n", file=sys.stderr)


def _show(render: Callable[..., str], report: Report) -> None:
    console = Console()
    print(render(report, color=console.is_terminal, width=min(console.width, 100)))
