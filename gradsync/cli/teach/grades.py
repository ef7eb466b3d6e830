"""`gradsync merge`, `gradsync report` and `gradsync export`: what becomes of stored grades."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gradsync.cli.shared import Out, say
from gradsync.exporting import Format
from gradsync.exporting.export import Exported, export
from gradsync.grading.classes.merging import merge
from gradsync.grading.pages import corrected_text, missing_text, render_again
from gradsync.grading.store import CLASS_PAGE, GRADEBOOK, course_of
from gradsync.submission.contents import listing
from gradsync.text import counted


def merge_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of grades, one for each shard.")],
    out: Out = Path("grades"),
) -> None:
    """Merge the grades of several shards into one folder with one gradebook.

    [dim]gradsync grade class/ --shard 3/40 --out shard-3[/]  one of 40 parts, on any machine
    [dim]gradsync merge shard-* --out grades[/]               all parts together
    """
    written = merge(folders, course_of(out), out, say)
    print(f"{out / GRADEBOOK}: {counted(written.submissions, 'submission')}")
    if written.waiting:
        waiting = counted(len(written.waiting), "submission")
        print(
            f"{waiting} not graded yet: {listing(written.waiting)}. "
            "Grade the rest, or merge the folders of all shards."
        )
    if written.missing:
        print(missing_text(written.missing))
    print(out / CLASS_PAGE)


def report_command(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder of grades, or the folder of one submission in it."),
    ],
) -> None:
    """Render all pages and the gradebook again, without grading.

    Corrections, and changes of the course's guides and points, are applied. The verdicts stay
    as they are.

    [dim]gradsync report week3[/]        all pages, the gradebook and the class page
    [dim]gradsync report week3/ada[/]    the page of one submission
    """
    written = render_again(folder, course_of(folder), say)
    print(f"{folder}: {counted(written.pages, 'page')} rendered")
    if written.corrected:
        print(corrected_text(written.corrected))


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
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Also export scores of different versions of the tests."),
    ] = False,
) -> None:
    """Write grades for Canvas, Moodle, Gradescope and other systems.

    `canvas-feedback` and `moodle-feedback` write the zip of reports that these systems take;
    `mail` writes a mailbox with a message for each person with a score. Nothing is sent.

    [dim]gradsync export week3 --to canvas[/]                        week3/exports/canvas.csv
    [dim]gradsync export week3 --to moodle --into worksheet.csv[/]   fill in a downloaded file
    [dim]gradsync export week3 --to gradescope --into grader.zip[/]  an autograder to upload
    """
    exported = export(out, course_of(out), to, into, os.environ, anyway=anyway)
    for path in exported.paths:
        print(path)
    _show_left_out(exported)


def _show_left_out(exported: Exported) -> None:
    submission, person = ("submission", None), ("person", "people")
    for names, noun, what in (
        (exported.without_score, submission, "without a score, so none is written"),
        (exported.missing, person, "on the roster handed in nothing, so nothing is written"),
        (exported.not_in_file, submission, "not in the downloaded file, so no score is written"),
        (exported.without_address, submission, f"left out, without {exported.needed}"),
        (exported.unchanged, submission, "not compared: missing files or unchanged templates"),
    ):
        if names:
            print(f"{counted(len(names), *noun)} {what}: {listing(names)}")
    if exported.scaled:
        print(exported.scaled)
    for warning in exported.warnings:
        say(warning)
