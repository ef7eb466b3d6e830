"""`gradsync check` and `gradsync hint`: how far a learner is, and how to go on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gradsync.cli.app import Seed, app, show
from gradsync.course import find_course
from gradsync.grading import draw_seed, grade
from gradsync.reports import progress, terminal
from gradsync.submission import read_submission


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
        render = partial(terminal.render, with_points=False) if chosen else progress.render
        show(render, replace(report, command=again))


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
