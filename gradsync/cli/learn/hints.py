"""`gradsync hint`: show hints on an exercise."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from gradsync.cli.shared import one_named
from gradsync.course.catalogue import CourseError, find_course


def hint_command(
    exercise: Annotated[
        str | None, typer.Argument(help="The exercise's name, as `gradsync check` shows it.")
    ] = None,
    number: Annotated[
        int, typer.Option("--number", "-n", min=1, help="How many hints to show.")
    ] = 1,
) -> None:
    """Show hints on an exercise, starting with the smallest.

    [dim]gradsync hint EXERCISE[/]         the first hint
    [dim]gradsync hint EXERCISE -n 2[/]    the first two hints
    """
    course = find_course()
    if exercise is None:
        raise CourseError(f"Name an exercise, as in `gradsync hint NAME`. {course.names()}")
    chosen = one_named(course, exercise, "hint")
    console = Console()
    console.print(f"[bold]{chosen.name}[/]: {escape(chosen.goal)}\n")
    for index, text in enumerate(chosen.hints[:number], 1):
        console.print(f"[bold]{index}.[/] {escape(text)}\n")
    if number < len(chosen.hints):
        console.print(f"[dim]Next hint: gradsync hint {chosen.id} -n {number + 1}[/]")
    if (course.root / chosen.phase / "GUIDELINES.md").is_file():
        console.print(f"[dim]Read: {chosen.phase}/GUIDELINES.md, “{chosen.guide}”[/]")
    if chosen.notebook:
        console.print(f"[dim]Lesson: {chosen.notebook}[/]")
