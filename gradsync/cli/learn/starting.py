"""`gradsync start`: a copy of the course for somebody who studies alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradsync.cli.learn.updating import show_change
from gradsync.course.catalogue import find_course
from gradsync.course.release.publish import publish
from gradsync.ranks.protocol.user_files import PACKAGE
from gradsync.text import counted


def start_command(
    folder: Annotated[Path, typer.Argument(help="The new folder, or an older copy to update.")],
) -> None:
    """Copy the course to a folder of your own, with its tests and solutions.

    If the folder is such a copy already, it is updated, and your edits are kept.

    [dim]gradsync start my-course[/]
    """
    course = find_course(PACKAGE, carried=True)  # of gradsync, not of the working folder
    published = publish(course, folder, None, archive=False, self_study=True)
    show_change(folder, published.change)
    print(
        f"{folder}: the course, {counted(published.count, 'file')}. Begin with the first lesson in "
        f"{folder / 'notebooks'}, or with the first exercise:\n\n  cd {folder}\n  gradsync check"
    )
