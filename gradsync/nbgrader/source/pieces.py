"""Cut a solution file into pieces that become cells of a notebook."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from gradsync.course.templates import BEGIN, END
from gradsync.notebook.definitions.statements import DEFINITIONS, first_line

BETWEEN = "\n\n\n"  # between definitions, as in a file


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts of a solution file, without `main` and imports of the phase's other files."""

    about: str  # the file's docstring
    given: str  # imports and definitions that the learner gets
    answers: Mapping[str, str]  # exercise -> its source and helpers, in the file's order


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of the file that belong together."""

    first: int
    last: int
    nodes: tuple[ast.stmt, ...]
    is_helper: bool = False  # whether it is between markers
    exercise: str = ""  # the exercise that it defines


def cut(source: str, exercises: Collection[str], others: Collection[str]) -> Pieces:
    """Return the pieces of a solution's source text.

    A helper between markers outside of functions belongs to the exercise before it if that exercise
    uses the helper, and to the exercise after it if not.

    Args:
        source: text of the file, with its markers.
        exercises: the names that the learner defines in this file.
        others: the modules of the phase's other files, whose names the notebook already has.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    given: list[str] = []
    answers: dict[str, list[str]] = {}
    waiting: list[str] = []  # helpers of the next exercise
    before: _Part | None = None  # the previous exercise
    for part in _parts(tree, lines, exercises):
        text = "\n".join(lines[part.first - 1 : part.last])
        if part.exercise:
            answers[part.exercise] = [*waiting, text.strip("\n")]
            waiting, before = [], part
        elif part.is_helper and before is not None and _uses(before, part):
            answers[before.exercise].append(text.strip("\n"))
        elif part.is_helper:
            waiting.append(text.strip("\n"))
        elif not _is_dropped(part.nodes[0], others):
            given.append(text)
    return Pieces(
        about=ast.get_docstring(tree) or "",
        given="\n".join(given).strip("\n"),
        answers={name: BETWEEN.join(texts) for name, texts in answers.items()},
    )


def _parts(tree: ast.Module, lines: list[str], exercises: Collection[str]) -> Iterator[_Part]:
    """Yield the file's parts in order; empty lines and comments belong to the next part."""
    top = tree.body[0] if ast.get_docstring(tree) is not None else None
    begun = (top.end_lineno or 1) + 1 if top else 1
    for part in _merged([*_statements(tree, lines, exercises), *_marked(lines)]):
        yield replace(part, first=begun)
        begun = part.last + 1


def _statements(tree: ast.Module, lines: list[str], exercises: Collection[str]) -> Iterator[_Part]:
    for node in tree.body[1:] if ast.get_docstring(tree) is not None else tree.body:
        name = node.name if isinstance(node, DEFINITIONS) and node.name in exercises else ""
        yield _Part(first_line(node), _last_line(node, lines), (node,), exercise=name)


def _last_line(node: ast.stmt, lines: list[str]) -> int:
    """Return the last line of a statement, including indented comments such as a marker."""
    last = end = node.end_lineno or node.lineno
    for number, line in enumerate(lines[end:], end + 1):
        if line.startswith(" "):
            last = number
        elif line:
            break
    return last


def _marked(lines: list[str]) -> Iterator[_Part]:
    """Yield the lines between markers outside of functions, including the markers."""
    first = 0
    for number, line in enumerate(lines, 1):
        if line == BEGIN:
            first = number
        elif line == END:
            yield _Part(first, number, (), is_helper=True)


def _merged(parts: list[_Part]) -> list[_Part]:
    """Merge statements with the marked parts that they overlap."""
    merged: list[_Part] = []
    for part in sorted(parts, key=lambda part: (part.first, -part.last)):
        above = merged[-1] if merged else None
        if above is None or part.first > above.last:
            merged.append(part)
            continue
        merged[-1] = replace(
            above,
            last=max(above.last, part.last),
            nodes=(*above.nodes, *part.nodes),
            is_helper=above.is_helper and not part.exercise,
            exercise=above.exercise or part.exercise,
        )
    return merged


def _uses(part: _Part, helper: _Part) -> bool:
    """Check whether a part uses a name that the helper defines."""
    names = {node.id for top in part.nodes for node in ast.walk(top) if isinstance(node, ast.Name)}
    return not names.isdisjoint(defined(helper.nodes))


def defined(nodes: Collection[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the names that statements define by `def`, `class` or an assignment."""
    found: dict[str, ast.stmt] = {}
    for node in nodes:
        if isinstance(node, DEFINITIONS):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def _is_dropped(node: ast.stmt, others: Collection[str]) -> bool:
    """Check whether a notebook does not need a statement that is outside of markers."""
    if isinstance(node, ast.ImportFrom):
        return node.module in others
    return isinstance(node, ast.If) or (isinstance(node, DEFINITIONS) and node.name == "main")
