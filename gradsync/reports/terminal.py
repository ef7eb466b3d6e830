"""Render a report for the terminal: the table of points, then a block for each mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gradsync.records import Report, Status, Verdict
from gradsync.reports.summary import (
    LATER,
    Exercise,
    Problem,
    by_file,
    exercises,
    guide,
    hint_command,
    paragraphs,
    printed_by,
    problems,
    repeat_command,
    standing,
    unfinished,
    visible_standing,
)
from gradsync.reports.text import amount, blocks, printable
from gradsync.text import counted, listed, ranks_text

LONGEST_MESSAGE = 1200  # characters; report.html has the complete message
LONGEST_ALONE = 100_000  # if there is no report.html
NARROWEST = 40

_INDENT = 4
MARKS: dict[Status, tuple[str, str]] = {"passed": ("✓", "green"), "unfinished": ("○", "dim")}
WRONG = ("✗", "red")


def render(
    report: Report,
    *,
    color: bool = False,
    width: int = 80,
    with_points: bool = True,
    whole: bool = True,
) -> str:
    """Return the report in lines of at most `width` characters, with ANSI colours if `color`.

    Pass `with_points=False` for a report with the visible tests, which give no points for a grade,
    and `whole=False` if it has no results of the hidden tests.
    """
    return as_text(_parts(report, with_points, whole), color=color, width=width)


def as_text(parts: Iterable[RenderableType], *, color: bool, width: int) -> str:
    """Return what a terminal of this width shows, independent of the real one."""
    lines = StringIO()
    console = Console(
        file=lines,
        width=max(width, NARROWEST),
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,  # the 16 colours of the user's theme
        no_color=not color,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in lines.getvalue().split("\n"))


def _parts(report: Report, with_points: bool, whole: bool) -> Iterator[RenderableType]:
    yield _header(report, with_points)
    yield Rule(style="dim")
    if report.notes:
        yield from (Text("note: " + printable(note), style="yellow") for note in report.notes)
        yield ""
    yield standing(report) if with_points else visible_standing(report, whole=whole)
    if report.status != "unreadable":
        yield from _graded(report, with_points)
    yield ""
    yield Text.assemble(("To repeat this run: ", "dim"), repeat_command(report))


def _header(report: Report, with_points: bool) -> RenderableType:
    points = f"  {amount(report.score)} of {amount(report.max_score)} points" * with_points
    return Text.assemble(
        (printable(report.submission) + points, "bold"),
        (f"  ·  seed {report.seed}  ·  {amount(report.seconds)} s", "dim"),
        ("" if report.sandboxed else "  ·  no sandbox", "yellow"),
    )


def _graded(report: Report, with_points: bool) -> Iterator[RenderableType]:
    yield ""
    yield _table(report, with_points)
    for problem in problems(report):
        yield ""
        yield from _problem(problem, with_points)
    if unfinished(report):
        yield ""
        yield from _to_write(unfinished(report))


def _table(report: Report, with_points: bool) -> RenderableType:
    codes = _codes(report)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2, justify="right")
    table.add_column(overflow="fold")
    if with_points:
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for file, members in by_file(report).items():
        table.add_row("", Text(printable(file), style="dim"))
        for exercise in members:
            status = "passed" if exercise.is_right_with_ours else exercise.status
            mark, style = MARKS.get(status, WRONG)
            points = [amount(exercise.points), f"/ {amount(exercise.max_points)}"]
            table.add_row(
                Text(mark, style=style),
                Text(printable(exercise.name)),
                *(points if with_points else ()),
                Padding(Text(codes.get(exercise.id, ""), style=style), (0, 0, 0, 1)),
            )
    return table


def _codes(report: Report) -> dict[str, str]:
    """Return, for each exercise, the code of its first problem, "to write", or what is ours."""
    codes = {exercise.id: "to write" for exercise in unfinished(report)}
    for problem in reversed(problems(report)):
        diagnosis, status = problem.first.diagnosis, problem.first.status
        codes |= dict.fromkeys(
            problem.exercises, printable(diagnosis.code) if diagnosis else status
        )
    right = [exercise for exercise in exercises(report) if exercise.is_right_with_ours]
    return codes | {exercise.id: f"with our {listed(exercise.given)}" for exercise in right}


def _problem(problem: Problem, with_points: bool) -> Iterator[RenderableType]:
    verdict = problem.first
    header = Table.grid(expand=True, padding=(0, 1))
    header.add_column(width=2, justify="right")
    header.add_column(ratio=1, overflow="fold")
    header.add_column(justify="right", no_wrap=True)
    points = f"{amount(problem.points)} / {amount(problem.max_points)}"
    name = Text(printable(problem.title), style="bold")
    mark, style = MARKS["passed"] if verdict.given else WRONG
    header.add_row(Text(mark, style=style), name, points if with_points else "")
    yield header
    if problem.sentence:
        yield _indented(Text(f"Tested: {printable(problem.sentence)}", style="italic dim"))
    if problem.is_later:
        yield _indented(Text(LATER, style="yellow"))
    yield from message(verdict, LONGEST_MESSAGE if with_points else LONGEST_ALONE)
    yield from _output(verdict)
    yield ""
    yield _indented(_facts(problem))


def message(verdict: Verdict, longest: int) -> Iterator[RenderableType]:
    """Yield a message's paragraphs, each after an empty line."""
    whole = "\n\n".join(paragraphs(verdict))
    for block in blocks(whole[:longest]):
        yield ""
        yield _indented(Text(block.text, overflow="fold"), 2 * block.is_code)
    for line in verdict.review:
        yield ""
        yield _indented(Text(f"review: {printable(line)}", style="yellow", overflow="fold"))
    if len(whole) > longest:
        rest = f"… and {len(whole) - longest:,} more characters in report.html"
        yield _indented(Text(rest, style="dim"))


def _output(verdict: Verdict) -> Iterator[RenderableType]:
    for block in verdict.output:
        yield ""
        yield _indented(Text(printed_by(block) + ":", style="dim"))
        yield _indented(Text(printable("\n".join(block.lines)), overflow="fold"), 2)


def _facts(problem: Problem) -> RenderableType:
    verdict, diagnosis = problem.first, problem.first.diagnosis
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    if diagnosis is not None:
        facts.add_row("mistake", Text(diagnosis.code, style="red"))
    if diagnosis is not None and diagnosis.ranks:
        name, _, numbers = ranks_text(diagnosis.ranks).partition(" ")
        facts.add_row(name, numbers)
    if diagnosis is not None and diagnosis.where:
        facts.add_row("line", Text(printable(diagnosis.where)))
    section = guide(verdict)
    if section is not None:
        facts.add_row("read", Text(printable(f"{section.path}, “{section.heading}”")))
    if problem.others:
        facts.add_row("also", f"in {counted(len(problem.others), 'more test')}")
    return facts


def _to_write(exercises: list[Exercise]) -> Iterator[RenderableType]:
    names = ", ".join(exercise.name for exercise in exercises)
    yield Text.assemble((" ○ ", "dim"), (f"{len(exercises)} still to write", "bold"))
    yield _indented(Text(printable(names)))
    yield _indented(
        Text.assemble(
            ("Begin with ", "dim"),
            printable(exercises[0].name),
            (": ", "dim"),
            printable(hint_command(exercises[0])),
        )
    )


def _indented(content: RenderableType, further: int = 0) -> RenderableType:
    return Padding(content, (0, 0, 0, _INDENT + further))
