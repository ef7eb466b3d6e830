"""`gradsync release` and `gradsync templates`: the copies that are made of the course."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradsync.cli.learn.copies import show_change
from gradsync.course.catalogue import find_course
from gradsync.course.guides import guides
from gradsync.course.release.publish import publish
from gradsync.course.templates import templates
from gradsync.submission.contents import listing
from gradsync.text import counted, listed


def release_command(
    out: Annotated[Path, typer.Argument(help="The folder of the learners' copy.")],
    archive: Annotated[bool, typer.Option("--zip", help="Also write the copy to OUT.zip.")] = False,
    self_study: Annotated[
        bool,
        typer.Option("--self-study", help="With solutions and hidden tests, to study alone."),
    ] = False,
    phase: Annotated[
        str | None, typer.Option(help="Release the phases up to this one, such as 1. Default: all.")
    ] = None,
) -> None:
    """Write a learner's copy of the course, without solutions and hidden tests.

    If OUT is a release already, it is updated. Files that a learner edited are not
    changed; a new version is saved beside them, with the extension .new.

    [dim]gradsync release ../ddp-course[/]                the whole course
    [dim]gradsync release ../ddp-course --phase 1 --zip[/]  phase 1 only, and an archive of it
    [dim]gradsync release ../my-course --self-study[/]   everything, to study alone
    """
    course = find_course(carried=True)
    chosen = None if phase is None else course.phase(phase)
    published = publish(course, out, chosen, archive=archive, self_study=self_study)
    show_change(out, published.change)
    print(f"{out}: {listed(published.phases)}, {counted(published.count, 'file')}")
    if published.edited:
        print(f"Changed since `gradsync start`: {listing(published.edited)}")
    if published.archive is not None:
        print(published.archive)


def templates_command(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")
    ] = False,
) -> None:
    """Generate templates, notebooks and the guides' line counts (for authors of the course)."""
    # Only this command needs pytest and the imports of a suite.
    from gradsync.grading.suite.weights import points_of
    from gradsync.nbgrader.source.assignment import FOLDER, assignments

    course = find_course()
    points = [points_of(course, "hidden", phase) for phase in course.graded_phases("hidden")]
    worth = {exercise: most for phase in points for exercise, most in phase.items()}
    has_notebooks = (course.root / FOLDER).parent.is_dir()
    notebooks = assignments(course, worth) if has_notebooks else ()
    stale = []
    for path, text in [*templates(course), *guides(course), *notebooks]:
        target = course.root / path
        if target.is_file() and target.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'out of date: run `gradsync templates`' if check else 'written'}")
    raise typer.Exit(1 if check and stale else 0)
