"""`gradsync explain`: what a diagnosis code means, with wrong and right lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from gradsync.course.catalogue import Course, CourseError, find_course
from gradsync.course.codes import Meaning, meanings, of_code

WIDEST = 88
ANY_EXERCISE = "Any exercise"
PANELS = (("wrong", "red"), ("right", "green"))


def explain_command(
    code: Annotated[
        str | None, typer.Argument(help="A code, as a report shows it. Default: all.")
    ] = None,
) -> None:
    """Show what a mistake's code means, with wrong and right lines.

    [dim]gradsync explain[/]                          all codes, by section of the guide
    [dim]gradsync explain deadlock-rank-missing[/]    one code
    """
    course = _course()
    known = meanings(course)
    console = Console(highlight=False)
    console.width = min(console.width, WIDEST)
    if code is None:
        console.print(_listed(known))
        console.print("[dim]To see wrong and right lines:[/] gradsync explain CODE")
    else:
        found = of_code(code, known)
        parts = (part for meaning in found for part in _parts(meaning, course))
        console.print(Group(Text(found[0].code, "bold red"), *parts))


def _course() -> Course | None:
    """Return the course that contains the working folder, or None: some codes need no course."""
    try:
        return find_course(carried=True)
    except CourseError:
        return None


def _listed(known: Sequence[Meaning]) -> RenderableType:
    """Return all codes with their causes, a table for each topic."""
    topics: dict[str, list[Meaning]] = {}
    for meaning in known:
        topic = meaning.guide or ANY_EXERCISE
        topic += f" ({meaning.phase})" if meaning.phase else ""
        topics.setdefault(topic, []).append(meaning)
    widest = max(len(meaning.code) for meaning in known)
    parts: list[RenderableType] = []
    for topic, members in topics.items():
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=widest)
        table.add_column(ratio=1)
        for meaning in members:
            table.add_row(Text(meaning.code, "red"), Text(meaning.cause))
        parts += [Text(topic, "bold"), Padding(table, (0, 0, 1, 2))]
    return Group(*parts)


def _parts(meaning: Meaning, course: Course | None) -> Iterator[RenderableType]:
    """Yield a meaning of a code, with its lines and the section of the guide."""
    yield Text(f"\n{meaning.exercise or 'in any exercise'}", "bold")
    yield Text(meaning.cause)
    if meaning.symptom:
        yield Text.assemble(("What you may see: ", "dim"), meaning.symptom)
    for title, color in PANELS:
        lines = getattr(meaning, title).strip("\n")
        code = Syntax(
            lines, "python", theme="ansi_dark", background_color="default", word_wrap=True
        )
        yield Panel(code, title=title, title_align="left", border_style=color)
    if course is not None and (section := _section(meaning, course)):
        yield Text.assemble(("Read: ", "dim"), section)


def _section(meaning: Meaning, course: Course) -> str:
    """Return the guide and its section, or "" if no guide of the course has such a section."""
    for phase in sorted(course.phases, key=lambda phase: phase != meaning.phase):
        guide = course.root / phase / "GUIDELINES.md"
        if guide.is_file() and f"# {meaning.guide}\n" in guide.read_text(encoding="utf-8"):
            return f"{phase}/GUIDELINES.md, “{meaning.guide}”"
    return ""
