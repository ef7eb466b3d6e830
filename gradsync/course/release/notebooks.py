"""The notebooks of a release: for self-study, and the exercises without solutions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from gradsync.course.catalogue import Course, CourseError
from gradsync.course.templates import make_template

FOLDER = "notebooks"
SOURCE = "notebooks/nbgrader/source"  # of the course for nbgrader, with solutions
EXERCISES = "notebooks/exercises"  # the same notebooks in a release
FROM_CHECKOUT = '"..[notebooks]"'  # how a notebook of the course installs gradsync
FROM_RELEASE = "--requirement requirements.txt"
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
_CHECKED = re.compile(r"""\bcheck\(\s*["']([\w/]+)["']""")
_REFERRED = re.compile(r"\]\(\.\./(\w+)/GUIDELINES\.md")
_HIDDEN = re.compile(
    r"^[ \t]*### BEGIN HIDDEN TESTS\n.*?^[ \t]*### END HIDDEN TESTS[ \t]*\n?",
    re.MULTILINE | re.DOTALL,
)


def notebooks(course: Course, phases: Sequence[str]) -> dict[str, bytes]:
    """Return the notebooks and the modules that they import, by path.

    A notebook that checks an exercise of another phase, or that checks none and refers to the guide
    of another phase, is left out.

    Raises:
        CourseError: a notebook can't be read.
    """
    found: dict[str, bytes] = {}
    modules: set[str] = set()
    for path in sorted((course.root / FOLDER).glob("*.ipynb")):
        notebook = _read(path)
        code = "\n".join(_sources(notebook, "code"))
        if _phases(course, notebook) <= set(phases):
            _install_from_release(notebook)
            found[f"{FOLDER}/{path.name}"] = notebook_text(notebook).encode()
            modules |= set(_IMPORT.findall(code))
    for name in _with_imports(course.root / FOLDER, modules):
        found[f"{FOLDER}/{name}.py"] = (course.root / FOLDER / f"{name}.py").read_bytes()
    source = course.root / SOURCE
    for phase in phases:
        copies = (course.root / EXERCISES).glob(f"{phase}.ipynb")  # of a copy by `gradsync start`
        for path in sorted((source / phase).glob("*.ipynb") if source.is_dir() else copies):
            exercises = _cleared(_read(path), phase)
            found[f"{EXERCISES}/{path.name}"] = notebook_text(exercises).encode()
    return found


def notebook_text(notebook: Any) -> str:
    """Return a notebook in Jupyter's own format, so that saving it in Jupyter changes nothing."""
    return f"{json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)}\n"


def _read(path: Path) -> Any:
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        return notebook if notebook["cells"] is not None else None
    except (ValueError, LookupError, TypeError) as problem:
        raise CourseError(f"{path} can't be read as a notebook: {problem}.") from None


def _source(cell: Any) -> str:
    return "".join(cell["source"])


def _sources(notebook: Any, kind: str) -> Iterator[str]:
    yield from (_source(cell) for cell in notebook["cells"] if cell["cell_type"] == kind)


def _phases(course: Course, notebook: Any) -> set[str]:
    """Return the phases of the exercises that a notebook checks, or of its references."""
    checked = _CHECKED.findall("\n".join(_sources(notebook, "code")))
    referred = _REFERRED.findall("\n".join(_sources(notebook, "markdown")))
    return {course.find(name).phase for name in checked} or set(referred)


def _install_from_release(notebook: Any) -> None:
    for cell in notebook["cells"]:
        text = _source(cell)
        if FROM_CHECKOUT in text:
            cell["source"] = text.replace(FROM_CHECKOUT, FROM_RELEASE).splitlines(keepends=True)


def _with_imports(folder: Path, names: Collection[str]) -> list[str]:
    """Return the modules in the folder that are imported directly or indirectly."""
    needed: set[str] = set()
    unread = list(names)
    while unread:
        name = unread.pop()
        path = folder / f"{name}.py"
        if name not in needed and path.is_file():
            needed.add(name)
            unread += _IMPORT.findall(path.read_text(encoding="utf-8"))
    return sorted(needed)


def _cleared(notebook: Any, phase: str) -> Any:
    """Return a notebook with the templates' stubs for solutions, without hidden tests."""
    for cell in notebook["cells"]:
        text = _HIDDEN.sub("", _source(cell))
        if cell.get("metadata", {}).get("nbgrader", {}).get("solution"):
            text = make_template(text, phase).rstrip("\n")
        cell["source"] = text.splitlines(keepends=True)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return notebook
