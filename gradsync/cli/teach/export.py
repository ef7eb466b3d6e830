"""`gradsync export`: write grades for another system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradsync.cli.app import app, say
from gradsync.course.catalogue import find_course
from gradsync.exporting.formats import Format
from gradsync.submission.contents import listing
from gradsync.text import counted

if TYPE_CHECKING:
    from gradsync.exporting.export import Exported


@app.command(name="export")
def export_command(
    out: Annotated[
        Path,
        typer.Argument(help="A folder of grades, or for `--to similarity` the submissions."),
    ],
    to: Annotated[Format, typer.Option(help="The system that reads the export.")],
    into: Annotated[
        Path | None,
        typer.Option(help="The path to write. Default: in OUT/exports, or beside the submissions."),
    ] = None,
) -> None:
    """Write grades for Canvas, Moodle, Gradescope and other systems.

    [dim]gradsync export week3 --to canvas[/]                        week3/exports/canvas.csv
    [dim]gradsync export week3 --to moodle --into worksheet.csv[/]   fill in a downloaded file
    [dim]gradsync export week3 --to gradescope --into grader.zip[/]  an autograder to upload
    """
    from gradsync.exporting.export import export  # imports pytest and jinja2

    exported = export(out, find_course(), to, into, os.environ)
    for path in exported.paths:
        print(path)
    _show_left_out(exported)


def _show_left_out(exported: Exported) -> None:
    submission, person = ("submission", None), ("person", "people")
    for names, noun, what in (
        (exported.without_score, submission, "without a score, so none is written"),
        (exported.missing, person, "on the roster handed in nothing, so no score is written"),
        (exported.not_in_file, submission, "not in the downloaded file, so no score is written"),
        (exported.unchanged, submission, "not compared: missing files or unchanged templates"),
    ):
        if names:
            print(f"{counted(len(names), *noun)} {what}: {listing(names)}")
    for warning in exported.warnings:
        say(warning)
