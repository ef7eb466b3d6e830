"""Convert a notebook's definitions to a file (pure functions).

A notebook contains experiments, which must not run when the file is imported. So the file gets only
the definitions of the wanted names, and the definitions that these need.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gradsync.notebook.definitions.ipython import is_cell_magic, without_magics
from gradsync.notebook.definitions.needs import needed
from gradsync.notebook.definitions.statements import (
    NOT_PYTHON,
    Program,
    Statement,
    first_line,
    futures_of,
    read_program,
)
from gradsync.submission.contents import MAX_FILE

MAX_CODE = 2 * MAX_FILE  # characters of all cells
HEADER = "# coding: utf-8"  # so that no comment in a cell can declare another encoding
UNUSABLE = re.compile("[\0\ud800-\udfff]")  # not allowed in a file of source code
DEFINED = re.compile(
    r"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE
)

Origin = tuple[str, int]


class NotebookError(ValueError):
    """A notebook's definitions can't be converted to a file; the message says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell of a notebook."""

    label: str  # such as "In [5]"; "" for a generated cell whose lines are not named
    source: str


@dataclass(frozen=True, slots=True)
class Module:
    """The source of a file, and the origin of each line."""

    text: str
    # For each line: cell and line in it; None for a generated line.
    origins: tuple[Origin | None, ...]

    @classmethod
    def of_text(cls, label: str, text: str) -> Module:
        """Return a file with the given text, whose lines are named by `label`."""
        lines = _lines(text)
        return cls("\n".join(lines), tuple((label, line) for line in range(1, len(lines) + 1)))


Line = tuple[str, Origin | None]


def module_of(
    cells: Sequence[Cell],
    wanted: Collection[str],
    *,
    base: Module | None = None,
    without: Collection[str] = (),
) -> Module:
    """Return the file with the definitions of the wanted names, and the definitions they need.

    The latest definition of a name counts. If a cell that is not valid Python seems to contain it,
    the name is a function that raises the syntax error; the names of other cells are not changed.

    Args:
        cells: the notebook's code cells, in the order in which they ran.
        wanted: names; names that no cell defines are left out.
        base: the file's content before the notebook's definitions. Its
            `if __name__ == "__main__":` is moved to the end.
        without: modules; `from M import ...` is ignored for these. A file can't import names from
            itself, and one notebook may define the names of several files.

    Raises:
        NotebookError: the cells contain too much text.
    """
    if sum(len(cell.source) for cell in cells if len(cell.source) <= MAX_FILE) > MAX_CODE:
        raise NotebookError(
            f"The notebook has more than {MAX_CODE:,} characters of code. Move data to files."
        )
    sources = ["\n".join(_lines(cell.source)) for cell in cells]
    programs = [_program(source) for source in sources]
    broken = _broken(sources, programs, set(wanted))
    placed = [
        (cell.label, statement)
        for cell, program in zip(cells, programs, strict=True)
        for statement in (program.statements if program else ())
        if statement.imports.rpartition(".")[2] not in without
    ]
    kept = needed([statement for _, statement in placed], wanted)
    futures = {name for program in programs if program for name in program.futures}
    body: list[Line] = []
    for index in sorted(kept):
        body += _placed(*placed[index])
    for name, index in broken.items():
        body += _raising(name, cells[index].label, sources[index])
    return _assembled(futures, base or Module("", ()), body)


def defined_in(cell: Cell) -> frozenset[str] | None:
    """Return the names that a cell binds, or None if it is not valid Python."""
    program = _program("\n".join(_lines(cell.source)))
    if program is None:
        return None
    return frozenset(name for statement in program.statements for name in statement.binds)


def _lines(text: str) -> list[str]:
    """Return lines as Python counts them, without characters that are not allowed in a file."""
    text = UNUSABLE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return text.removesuffix("\n").split("\n") if text else []


def _program(source: str) -> Program | None:
    if len(source) > MAX_FILE:
        return None
    if is_cell_magic(source):
        return Program((), frozenset())
    program = read_program(source)
    return program or read_program(without_magics(source))


def _broken(
    sources: Sequence[str], programs: Sequence[Program | None], wanted: set[str]
) -> dict[str, int]:
    """Return the names whose latest definition seems to be in an invalid cell, and its index."""
    found: dict[str, int] = {}
    missing = set(wanted)
    for index in reversed(range(len(sources))):
        program = programs[index]
        if program is not None:
            names = {name for statement in program.statements for name in statement.binds}
        else:
            names = {name for match in DEFINED.findall(sources[index]) for name in match}
            found |= dict.fromkeys(sorted(names & missing), index)
        missing -= names
    return found


def _raising(name: str, label: str, source: str) -> Iterator[Line]:
    """Yield a function of that name which raises the syntax error of its cell."""
    said, line = _flaw(label, source)
    yield "", None
    yield f"def {name}(*_, **__):", None
    yield f"    raise SyntaxError({said!r})", (label, line)


def _flaw(label: str, source: str) -> tuple[str, int]:
    """Return why a cell is not valid Python, and its line."""
    if len(source) > MAX_FILE:
        return f"{label} has {len(source):,} characters; at most {MAX_FILE:,} are allowed", 1
    try:
        symtable.symtable(without_magics(source), label, "exec")  # as `read_program` does
        ast.parse(without_magics(source))
    except SyntaxError as problem:
        return problem.msg, problem.lineno or 1
    except NOT_PYTHON as problem:
        return str(problem), 1
    return "the cell can't be read", 1


def _placed(label: str, statement: Statement) -> Iterator[Line]:
    yield "", None
    for number, line in enumerate(statement.lines, statement.first):
        yield line, ((label, number) if label else None)


def _assembled(futures: set[str], base: Module, body: Sequence[Line]) -> Module:
    given, last, more = _parts(base)
    lines: list[Line] = [(HEADER, None)]
    if futures | more:
        lines.append((f"from __future__ import {', '.join(sorted(futures | more))}", None))
    lines += [*given, *body, *last]
    return Module("".join(f"{line}\n" for line, _ in lines), tuple(origin for _, origin in lines))


def _parts(base: Module) -> tuple[list[Line], list[Line], set[str]]:
    """Return a file's lines, the lines to move to its end, and its imports from __future__."""
    lines: list[Line] = list(zip(_lines(base.text), base.origins, strict=True))
    last: list[Line] = []
    futures: set[str] = set()
    try:
        nodes = ast.parse(base.text).body
    except NOT_PYTHON:
        return lines, last, futures
    for node in nodes:
        place = slice(first_line(node) - 1, node.end_lineno)
        if _is_main(node):
            last += [("", None), *lines[place]]
        elif not futures_of(node):
            continue
        futures |= futures_of(node)
        lines[place] = [("", origin) for _, origin in lines[place]]
    return lines, last, futures


def _is_main(node: ast.stmt) -> bool:
    """Check whether a statement is `if __name__ == "__main__":`."""
    left = (
        node.test.left if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) else None
    )
    return isinstance(left, ast.Name) and left.id == "__name__"
