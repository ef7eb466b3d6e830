"""Show a learner's progress: one line for each exercise, and the next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradsync.records import Report, Verdict
from gradsync.reports.summary import (
    Exercise,
    exercises,
    guide,
    hint_command,
    paragraphs,
    problems,
    problems_of,
    short_name,
    visible_standing,
)
from gradsync.reports.terminal import LONGEST_ALONE, MARKS, WRONG, as_text, message
from gradsync.reports.text import printable

LONGEST_LINE = 400  # characters of a message; `gradsync check EXERCISE` shows all of it


def render(
    report: Report,
    *,
    color: bool = False,
    width: int = 80,
    lessons: Mapping[str, str | None] | None = None,
    whole: bool = False,
) -> str:
    """Return the progress in a phase, in lines of at most `width` characters.

    Args:
        report: of the visible tests of the phase.
        color: whether to use ANSI colours.
        width: the longest line.
        lessons: the notebook that precedes each exercise, by the exercise's id.
        whole: the report has the results of the hidden tests too.
    """
    parts = _parts(report, min(width // 2, 40), lessons or {}, whole=whole)
    return as_text(parts, color=color, width=width)


def _parts(
    report: Report, width: int, lessons: Mapping[str, str | None], *, whole: bool
) -> Iterator[RenderableType]:
    every = exercises(report)
    done = sum(exercise.status == "passed" for exercise in every)
    # The problems that several exercises of a file share.
    files = [p for p in problems(report) if p.of_whole_file and len(p.exercises) > 1]
    shown_below = {exercise for problem in files for exercise in problem.exercises}
    yield _table(every, shown_below)
    for problem in files:
        yield from message(problem.first, LONGEST_ALONE)
    yield ""
    bar = Table.grid(padding=(0, 1, 0, 0))
    total = max(len(every), 1)
    bar.add_row(ProgressBar(total=total, completed=done, width=width), f"{done} of {total}")
    yield bar
    yield Text(visible_standing(report, whole=whole), "green" if done == len(every) else "")
    if done < len(every):
        yield _next_step(every, shown_below, lessons, " --all" * whole)


def _table(every: list[Exercise], shown_below: set[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=2, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for exercise in every:
        mark, style = MARKS.get(exercise.status, WRONG)
        table.add_row(
            Text(mark, style=style), printable(exercise.name), _remark(exercise, shown_below)
        )
    return table


def _remark(exercise: Exercise, shown_below: set[str]) -> Text:
    if exercise.status == "passed":
        return Text("")
    if exercise.status == "unfinished":
        return Text(_unwritten(exercise), style="dim")
    wrong = problems_of(exercise)[0].first
    if exercise.id in shown_below:
        return Text(f"because of {_place(wrong)}, see below")
    text = printable(" ".join(paragraphs(wrong)[:1]))
    first = text.split("\n")[0]
    remark = Text(first if len(first) <= LONGEST_LINE else first[: LONGEST_LINE - 1] + "…")
    for line in wrong.review:
        remark.append(f"\nreview: {printable(line)}", style="yellow")
    return remark


def _unwritten(exercise: Exercise) -> str:
    """Return what is still to write: this exercise, or one that it calls."""
    messages = [v.message for v in exercise.verdicts if v.status == "unfinished"]
    needs = [m for m in messages if m.startswith(f"{exercise.id} needs ")]
    return printable(needs[0]) if len(needs) == len(messages) else "to write"


def _place(verdict: Verdict) -> str:
    """Return the line, or the file if the line is unknown, of a problem of a whole file."""
    line = verdict.diagnosis.where if verdict.diagnosis else None
    return printable(line or verdict.file)


def _next_step(
    every: list[Exercise],
    shown_below: set[str],
    lessons: Mapping[str, str | None],
    option: str,
) -> RenderableType:
    for exercise in every:
        name = printable(exercise.name)
        if exercise.status == "unfinished":
            first = Text.assemble("Next: write ", (name, "bold"), f" in {printable(exercise.file)}")
            return Group(first, _to_read(exercise, lessons.get(exercise.id)))
        if exercise.id in shown_below:
            return Text.assemble("Next: fix ", (_place(problems_of(exercise)[0].first), "bold"))
        if exercise.status != "passed":
            command = f"gradsync check {short_name(exercise)}{option}"
            return Text.assemble("Next: ", (command, "bold"), " shows the details")
    return Text("")


def _to_read(exercise: Exercise, lesson: str | None) -> RenderableType:
    """Return where to learn what an exercise needs: its notebook, section and hint."""
    table = Table.grid(padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if lesson:
        table.add_row("lesson", printable(lesson))
    section = guide(exercise.verdicts[0])
    if section is not None:
        table.add_row("read", printable(f"{section.path}, “{section.heading}”"))
    table.add_row("hint", hint_command(exercise))
    return table
