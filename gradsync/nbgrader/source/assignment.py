"""Make the source notebooks of the nbgrader course from solutions, exercises and guides."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gradsync.course.catalogue import Course, CourseError, Exercise
from gradsync.course.release.notebooks import notebook_text
from gradsync.nbgrader.source.guide import beginning
from gradsync.nbgrader.source.pieces import Pieces, cut, defined

GRADING_CALL = re.compile(r'^gradsync\.notebook\.grade\("(\w+/(\w+))", \2\)$', re.MULTILINE)
FOLDER = "notebooks/nbgrader/source"
SETUP = "import gradsync.notebook\n\n%load_ext gradsync"
HOW_TO_WORK = """\
# {title}

Write each exercise in its cell, in place of `raise NotImplementedError`. You can add cells and
define helpers anywhere. If a name is defined several times, the last definition counts.

- Run the cell below an exercise to see the test results. The last line shows your points.
- To try an idea on four ranks, begin a cell with `%%ranks 4`.
- If you are stuck, run `gradsync hint NAME` in a terminal."""
EXERCISE = """\
### `{name}` ({points:g} point{s})

**Goal:** {goal}.

{quote}Read on in `{phase}/GUIDELINES.md`, section "{guide}"."""


def exercise_of(source: str) -> str | None:
    """Return the id of the exercise that a grading cell grades, None for any other cell."""
    found = GRADING_CALL.search(source)
    return found[1] if found else None


def assignments(course: Course, points: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield (path within the course, text) for the source notebook of every phase.

    Args:
        course: a course that has its solutions.
        points: by exercise, such as "phase1/NAME"; phases without points are skipped.

    Raises:
        CourseError: two files of a phase define a name differently, or a file lacks an exercise.
    """
    for phase in course.phases:
        if all(exercise.id in points for exercise in course.exercises(phase)):
            yield f"{FOLDER}/{phase}/{phase}.ipynb", _notebook(course, phase, points)


def pieces_of(course: Course, phase: str) -> dict[str, Pieces]:
    """Return the pieces of a phase's solution files, by file.

    Raises:
        CourseError: two files define a name differently, or a file lacks an exercise.
    """
    files = course.files(phase)
    modules = {PurePosixPath(file).stem for file in files}
    pieces: dict[str, Pieces] = {}
    for file in files:
        names = {exercise.name for exercise in course.exercises(phase) if exercise.file == file}
        source = (course.root / "solutions" / phase / file).read_text(encoding="utf-8")
        pieces[file] = cut(source, names, modules)
        if lacking := names - set(pieces[file].answers):
            raise CourseError(f"solutions/{phase}/{file} does not define {', '.join(lacking)}.")
    _check_names(phase, pieces)
    return pieces


def _check_names(phase: str, pieces: Mapping[str, Pieces]) -> None:
    """Check that the files of a phase can share one namespace."""
    known: dict[str, tuple[str, str]] = {}
    for file, piece in pieces.items():
        text = "\n\n".join([piece.given, *piece.answers.values()])
        for name, node in defined(ast.parse(text).body).items():
            first, meaning = known.setdefault(name, (file, ast.dump(node)))
            if meaning != ast.dump(node):
                raise CourseError(
                    f"solutions/{phase}: {first} and {file} define {name} differently, but share "
                    "one notebook. Rename one of them."
                )


def _notebook(course: Course, phase: str, points: Mapping[str, float]) -> str:
    guide = (course.root / phase / "GUIDELINES.md").read_text(encoding="utf-8")
    title = guide.partition("\n")[0].removeprefix("# ")
    exercises = {exercise.name: exercise for exercise in course.exercises(phase)}
    cells = [_text("about", HOW_TO_WORK.format(title=title)), _given("setup", SETUP)]
    quoted: set[str] = set()
    for file, pieces in pieces_of(course, phase).items():
        stem = Path(file).stem
        heading, _, rest = pieces.about.partition("\n")
        about = f"## {heading.rstrip('.')}\n{rest.partition('Read GUIDELINES.md')[0]}"
        cells.append(_text(f"about-{stem}", about.strip()))
        cells.append(_given(f"given-{stem}", pieces.given))
        for name, answer in pieces.answers.items():
            cells += _exercise(exercises[name], guide, points[exercises[name].id], answer, quoted)
    return _with_kernel(cells)


def _exercise(
    exercise: Exercise, guide: str, points: float, answer: str, quoted: set[str]
) -> list[dict[str, Any]]:
    """Return the three cells of an exercise; each section of the guide is quoted only once."""
    quote = "" if exercise.guide in quoted else _quote(beginning(guide, exercise.guide))
    quoted.add(exercise.guide)
    about = EXERCISE.format(
        name=exercise.name,
        points=points,
        s="" if points == 1 else "s",
        goal=exercise.goal,
        quote=quote,
        phase=exercise.phase,
        guide=exercise.guide,
    )
    call = f'gradsync.notebook.grade("{exercise.id}", {exercise.name})'
    return [
        _text(f"about-{exercise.name}", about),
        _code(exercise.name, answer, grade=False, solution=True, locked=False),
        _code(
            f"grade-{exercise.name}", call, grade=True, solution=False, locked=True, points=points
        ),
    ]


def _quote(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.startswith("*Exercise")]
    quoted = "\n".join(f"> {line}".rstrip() for line in "\n".join(lines).strip().splitlines())
    return f"{quoted}\n\n" if quoted else ""


def _text(name: str, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": _id(name), "metadata": {}, "source": _lines(source)}


def _given(name: str, source: str) -> dict[str, Any]:
    return _code(name, source, grade=False, solution=False, locked=True)


def _code(name: str, source: str, **nbgrader: Any) -> dict[str, Any]:
    about = {"grade_id": name, "schema_version": 3, "cell_type": "code", "task": False, **nbgrader}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": _id(name),
        "metadata": {"nbgrader": about},
        "outputs": [],
        "source": _lines(source),
    }


def _id(name: str) -> str:
    return name.replace("_", "-")[:64]


def _lines(source: str) -> list[str]:
    return source.splitlines(keepends=True)


def _with_kernel(cells: Collection[dict[str, Any]]) -> str:
    """Return the text of a notebook with these cells."""
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    about = {"metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return notebook_text({"cells": list(cells), **about})
