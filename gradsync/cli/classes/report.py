"""`gradsync report`: render the pages and the gradebook of a folder of grades again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradsync.cli.app import app, say
from gradsync.course.catalogue import find_course
from gradsync.text import counted


@app.command(name="report")
def report_command(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder of grades, or the folder of one submission in it."),
    ],
) -> None:
    """Render all pages and the gradebook again, without grading.

    For example after corrections, or after a change of the course's guides, or of the points
    of its tests. The verdicts stay as they are.

    [dim]gradsync report week3[/]        all pages, the gradebook and the class page
    [dim]gradsync report week3/ada[/]    the page of one submission
    """
    from gradsync.grading.again import render_again  # imports pytest and jinja2

    written = render_again(folder, find_course(), say)
    submissions = counted(written.submissions, "submission")
    print(f"{folder}: {submissions}, {counted(written.pages, 'page')} rendered")
