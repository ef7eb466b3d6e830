"""How far a learner is: a line an exercise, and what to do next."""

from __future__ import annotations

from io import StringIO

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradsync.records import Report
from gradsync.reports.summary import Exercise, exercises, hint_command, paragraphs
from gradsync.reports.terminal import MARKS, WRONG, console_for
from gradsync.reports.text import printable

LONGEST_LINE = 400  # characters of what is wrong; `gradsync check EXERCISE` has all of it


def render(report: Report, *, color: bool = False, width: int = 80) -> str:
    """The phase's progress in lines of at most `width` characters."""
    lines = StringIO()
    console = console_for(lines, color, width)
    every = exercises(report)
    done = sum(exercise.status == "passed" for exercise in every)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for exercise in every:
        mark, style = MARKS.get(exercise.status, WRONG)
        table.add_row(Text(mark, style=style), printable(exercise.name), _remark(exercise))
    console.print(table)
    console.print()
    console.print(ProgressBar(total=max(len(every), 1), completed=done, width=min(width, 40)))
    console.print(f"{done} of {len(every)} exercises done")
    console.print(_next_step(every))
    return "\n".join(line.rstrip() for line in lines.getvalue().split("\n"))


def _remark(exercise: Exercise) -> Text:
    if exercise.status == "passed":
        return Text("")
    if exercise.status == "unfinished":
        return Text("to write", style="dim")
    wrong = next(v for v in exercise.verdicts if v.status not in ("passed", "unfinished"))
    text = printable(" ".join(paragraphs(wrong)[:1]))
    first = text.split("\n")[0]
    return Text(first if len(first) <= LONGEST_LINE else first[: LONGEST_LINE - 1] + "…")


def _next_step(every: list[Exercise]) -> Text:
    for exercise in every:
        name = printable(exercise.name)
        if exercise.status == "unfinished":
            return Text.assemble(
                "next: ",
                (name, "bold"),
                f" in {printable(exercise.file)}; stuck? {hint_command(exercise)}",
            )
        if exercise.status != "passed":
            return Text.assemble(
                "next: ", (f"gradsync check {name}", "bold"), " says more about it"
            )
    return Text("All of it is right in the main. The hidden tests look closer.", style="green")
