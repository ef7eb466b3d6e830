"""`gradsync solution`: show the reference solution of an exercise beside the learner's own."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

from gradsync.cli.learn.checking import run_tests
from gradsync.cli.shared import one_named, say
from gradsync.course.catalogue import Audience, Course, Exercise, find_course
from gradsync.course.own_and_ours import own_and_ours
from gradsync.grading.store import draw_seed

WIDE = 150  # columns of a terminal in which both fit beside each other


def solution_command(
    exercise: Annotated[
        str, typer.Argument(help="The exercise's name, as `gradsync check` shows it.")
    ],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Show it even if your own does not pass yet.")
    ] = False,
) -> None:
    """Show the solution of an exercise beside yours, once yours passes all tests.

    [dim]gradsync solution EXERCISE[/]             after your own passes
    [dim]gradsync solution EXERCISE --anyway[/]    before that
    """
    course = find_course()
    chosen = one_named(course, exercise, "solution")
    own, ours = own_and_ours(course, chosen)
    if not anyway and not _passes(course, chosen):
        raise typer.Exit(1)
    console = Console()
    console.print(_beside(own, ours, wide=console.width >= WIDE))


def _passes(course: Course, exercise: Exercise) -> bool:
    """Return whether all tests of an exercise pass; if not, say so."""
    has_hidden = exercise.phase in course.graded_phases("hidden")
    audiences: list[Audience] = ["visible", "hidden"] if has_hidden else ["visible"]
    report = run_tests(course, exercise.phase, [exercise], audiences, draw_seed())
    passed = sum(verdict.status == "passed" for verdict in report.verdicts)
    if passed == len(report.verdicts):
        return True
    say(
        f"Your {exercise.id} passes {passed} of {len(report.verdicts)} tests. "
        f"`{report.command}` shows what is missing. To see the solution nevertheless, add --anyway."
    )
    return False


def _beside(own: str, ours: str, *, wide: bool) -> RenderableType:
    """Return both sources, side by side or one above the other."""
    table = Table.grid(expand=True, padding=(0, 1, 0, 0))
    panels = [
        Panel(
            Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True),
            title=title,
            title_align="left",
            border_style=color,
        )
        for title, text, color in (("yours", own, "blue"), ("solution", ours, "green"))
    ]
    if wide:
        table.add_row(*panels)
    else:
        for panel in panels:
            table.add_row(panel)
    return table
