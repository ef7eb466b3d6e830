"""Combine a notebook's definitions and the learner's files into a submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gradsync.course.catalogue import Course, Exercise
from gradsync.notebook.definitions.file import Cell, Module, module_of
from gradsync.notebook.namespace import Namespace
from gradsync.submission import Submission

NAME = "your notebook"


@dataclass(frozen=True, slots=True)
class HandIn:
    """The files of a phase, with the origins of their lines."""

    modules: Mapping[str, Module]  # keys such as "phase1/template_trainer.py"

    @property
    def submission(self) -> Submission:
        files = {name: module.text.encode() for name, module in self.modules.items()}
        return Submission(NAME, files)


def hand_in(course: Course, exercise: Exercise, answer: Namespace) -> HandIn:
    """Return the learner's files of the exercise's phase, with the notebook's definitions added.

    Raises:
        NotebookError: the notebook contains too much text.
    """
    cells = answer.cells
    if exercise.name not in answer.names:
        cells = (*cells, Cell("", f"{exercise.name} = {answer.names[0]}"))
    files = course.files(exercise.phase)
    modules = {
        f"{exercise.phase}/{file}": _file(course, exercise.phase, file, cells) for file in files
    }
    return HandIn(modules)


def _file(course: Course, phase: str, file: str, cells: Sequence[Cell]) -> Module:
    wanted = [exercise.name for exercise in course.exercises(phase) if exercise.file == file]
    path = course.root / phase / file
    base = None
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        base = Module.of_text(f"{phase}/{file}", text)
    return module_of(cells, wanted, base=base, without=[PurePosixPath(file).stem])
