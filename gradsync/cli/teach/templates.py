"""`gradsync templates`: generate the templates from the solutions."""

from __future__ import annotations

from typing import Annotated

import typer

from gradsync.cli.app import app
from gradsync.course.catalogue import find_course
from gradsync.course.guides import guides
from gradsync.course.templates import templates


@app.command(name="templates")
def templates_command(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")
    ] = False,
) -> None:
    """Generate templates, notebooks and the guides' line counts (for authors of the course)."""
    # Only this command needs pytest and the imports of a suite.
    from gradsync.nbgrader.source.assignment import FOLDER, assignments
    from gradsync.nbgrader.source.points import points_of

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
