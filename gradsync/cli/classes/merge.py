"""`gradsync merge`: one gradebook of several folders of grades."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradsync.cli.app import Out, app, say
from gradsync.course.catalogue import find_course
from gradsync.submission.contents import listing
from gradsync.text import counted


@app.command(name="merge")
def merge_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of grades, one for each shard.")],
    out: Out = Path("grades"),
) -> None:
    """Merge the grades of several shards into one folder with one gradebook.

    [dim]gradsync grade class/ --shard 3/40 --out shard-3[/]  one of 40 parts, on any machine
    [dim]gradsync merge shard-* --out grades[/]               all parts together
    """
    from gradsync.grading.classes.merging import merge  # imports pytest
    from gradsync.grading.pages import missing_text
    from gradsync.grading.store import CLASS_PAGE, GRADEBOOK

    written = merge(folders, find_course(), out, say)
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
