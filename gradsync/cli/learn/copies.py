"""`gradsync start` and `gradsync update`: a copy of the course for somebody who studies alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradsync.course.catalogue import find_course
from gradsync.course.release.newer import update_from
from gradsync.course.release.publish import publish
from gradsync.course.release.update import Change
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


def update_command(
    release: Annotated[
        Path, typer.Argument(exists=True, help="The newer release: a .zip, or its folder.")
    ],
) -> None:
    """Update your copy of the course from a newer release. Your work stays as it is.

    Files that you edited are not changed; a new version is saved beside them, with the
    extension .new.

    [dim]gradsync update ~/Downloads/ddp-course.zip[/]
    """
    root = find_course().root
    change = update_from(root, release)
    show_change(root, change)
    if not (change.added or change.updated or change.removed or change.beside):
        print(f"{root} is up to date.")
    if any(path.endswith(".whl") for path in change.added):
        print(
            "gradsync itself has a new version: run `pip install --requirement requirements.txt`."
        )


def show_change(out: Path, change: Change) -> None:
    """Show how many files were changed, and name each file that was kept, with the reason."""
    for paths, what in (
        (change.added, "added"),
        (change.updated, "updated"),
        (change.removed, "removed, because the course no longer has them"),
    ):
        if paths:
            print(f"{counted(len(paths), 'file')} {what}")
    for path in change.kept:
        print(f"kept {out / path}: it was edited. The course has no new version of it.")
    for path, new in change.beside.items():
        print(f"kept {out / path}: it was edited. The new version is in {out / new}.")
    for path in change.kept_old:
        print(f"kept {out / path}: it was edited. The course no longer has this file.")
