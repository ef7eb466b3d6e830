"""Find the cells or the file that define an object, and its names there."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradsync.notebook.definitions.file import MAX_CODE, Cell, NotebookError, defined_in
from gradsync.ranks.protocol.user_files import is_users

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

IPYTHONS = re.compile(r"_+|_\d+|_i+\d*|_[a-z]h")  # IPython's names for results of cells


@dataclass(frozen=True, slots=True)
class Namespace:
    """The source that defines an object."""

    cells: tuple[Cell, ...]
    names: tuple[str, ...]  # of the object, at least one


def namespace_of(answer: object) -> Namespace:
    """Return the source that defines an object: the file it was imported from, or the cells.

    Raises:
        NotebookError: no source defines the object.
    """
    module = _own_module(answer)
    shell = running_shell()
    if module is not None:
        cells, variables = _of_file(module), vars(module)
    elif shell is not None:
        cells, variables = _of_history(shell), shell.user_ns
    else:
        main = sys.modules["__main__"]
        cells, variables = _of_file(main), vars(main)
    defined = {name for cell in cells for name in defined_in(cell) or ()}
    names = tuple(name for name in _names(answer, variables) if name in defined)
    if not names:
        raise NotebookError(_unknown_text(answer, variables))
    return Namespace(cells, names)


def running_shell() -> InteractiveShell | None:
    """Return the IPython shell in which this code runs, or None."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def _own_module(answer: object) -> ModuleType | None:
    """Return the user's own module from which an object was imported, or None."""
    name = getattr(answer, "__module__", None)
    if not isinstance(name, str) or name == "__main__":
        return None
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None) or ""
    if module is None or not path.endswith(".py") or not is_users(path, ()):
        return None
    return module if any(value is answer for value in vars(module).values()) else None


def _of_file(module: ModuleType) -> tuple[Cell, ...]:
    path = getattr(module, "__file__", None)
    if path is None:  # `python -c`, or Python's own prompt
        return ()
    try:
        return (Cell(Path(path).name, Path(path).read_text(encoding="utf-8", errors="replace")),)
    except OSError as problem:
        raise NotebookError(f"{path} can't be read: {problem}.") from None


def _of_history(shell: InteractiveShell) -> tuple[Cell, ...]:
    """Return the cells that have run, or only the latest if there is too much code."""
    history = shell.history_manager
    if history is None:
        return ()
    kept: list[Cell] = []
    size = 0
    for cell in _run(history.input_hist_raw, history.input_hist_parsed):
        size += len(cell.source)
        if size > MAX_CODE:
            break
        kept.append(cell)
    return tuple(reversed(kept))


def _run(raw: Sequence[str], parsed: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells that are valid Python, the latest first: other cells have not run."""
    for number in reversed(range(1, min(len(raw), len(parsed)))):
        # The text as typed has the right line numbers; if it is invalid, use IPython's version.
        for source in (raw[number], parsed[number]):
            cell = Cell(f"In [{number}]", source)
            if defined_in(cell) is not None:
                yield cell
                break


def _names(answer: object, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables that refer to the object, and its own name if no variable has it."""
    for name, value in list(variables.items()):
        if value is answer and not IPYTHONS.fullmatch(name):
            yield name
    own = getattr(answer, "__name__", None)
    if isinstance(own, str) and own not in variables:
        yield own


def _unknown_text(answer: object, variables: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(_names(answer, variables)))
    known = f"with the name {' or '.join(names)}" if names else "with any name"
    what = getattr(answer, "__name__", type(answer).__name__)
    return (
        f"No cell that has run defines this object ({what}) {known}. Define it in a cell with "
        "`def`, `class` or `NAME = ...`, run the cell, and pass that name. Cells that begin with "
        "%% do not count."
    )
