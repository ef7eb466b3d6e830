"""Parse the statements of a cell, each with the names that it binds and needs."""

from __future__ import annotations

import ast
import functools
import symtable
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

# The errors that the parser raises.
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SIMPLE = (*DEFINITIONS, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
STAR = "*"  # the name that `from M import *` binds
COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp", "genexpr"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A top-level statement of a cell."""

    lines: tuple[str, ...]
    first: int  # number of its first line in the cell, from 1
    binds: frozenset[str]  # names to which it assigns
    touches: frozenset[str]  # names whose attributes or items it sets, or that decorate it
    eager: frozenset[str]  # names that it reads as it runs
    lazy: frozenset[str]  # names that a function in it reads when it is called
    replaces: bool  # the new values do not depend on the old ones
    adds: bool  # `import a.b`: imports more of a package that may have been imported before
    calls: bool  # it may call functions as it runs
    imports: str  # the module from which names are imported, "" for any other statement
    defines: bool  # `def` or `class`: its functions are called later


@dataclass(frozen=True, slots=True)
class Program:
    """A cell that is valid Python."""

    statements: tuple[Statement, ...]
    futures: frozenset[str]  # imports from __future__, such as "annotations"


@functools.lru_cache(maxsize=1024)  # each check of a notebook reads all its cells
def read_program(source: str) -> Program | None:
    """Return the statements of a cell, None if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernel shows them, too
            # Finds more errors than the parser, and is faster.
            symtable.symtable(source, "cell", "exec")
            nodes = ast.parse(source).body
            statements = tuple(_statements(nodes, source.split("\n")))
    except NOT_PYTHON:
        return None
    futures = {name for node in nodes for name in futures_of(node)}
    return Program(statements, frozenset(futures))


def futures_of(node: ast.stmt) -> set[str]:
    """Return the names that a statement imports from __future__."""
    if isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level:
        return {alias.name for alias in node.names}
    return set()


def first_line(node: ast.stmt) -> int:
    """Return the line in which a statement begins, its decorators included."""
    decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _statements(nodes: list[ast.stmt], lines: list[str]) -> Iterator[Statement]:
    for node in nodes:
        if futures_of(node):
            continue
        own = _lines_of(node, lines)
        binds, eager, lazy = _names(own)
        if isinstance(node, ast.AugAssign):
            eager |= binds
        if isinstance(node, ast.Delete):
            binds = set()
        if isinstance(node, ast.ImportFrom) and node.names[0].name == STAR:
            binds = {STAR}
        # An annotation without a value binds no name.
        is_bare = isinstance(node, ast.AnnAssign) and node.value is None
        yield Statement(
            lines=tuple(own),
            first=first_line(node),
            binds=frozenset(binds),
            touches=frozenset(_touched(node)),
            eager=frozenset(eager),
            lazy=frozenset(lazy),
            replaces=isinstance(node, SIMPLE) and not binds & eager and not is_bare,
            adds=isinstance(node, ast.Import) and any(alias.asname is None for alias in node.names),
            calls=not isinstance(node, SIMPLE) or _calls(node),
            imports=(node.module or "") if isinstance(node, ast.ImportFrom) else "",
            defines=isinstance(node, DEFINITIONS),
        )


def _lines_of(node: ast.stmt, lines: list[str]) -> list[str]:
    """Return a statement's own lines, without other statements joined by `;`."""
    last = node.end_lineno or node.lineno
    own = lines[first_line(node) - 1 : last]
    end = _characters(own[-1], node.end_col_offset or 0)
    rest = own[-1][end:].strip()
    if rest and not rest.startswith("#"):
        own[-1] = own[-1][:end]
    own[0] = own[0][_characters(own[0], node.col_offset) :]
    return own


def _characters(line: str, size: int) -> int:
    """Return how many characters the first `size` bytes of a line are."""
    return size if line.isascii() else len(line.encode()[:size].decode())


def _names(lines: list[str]) -> tuple[set[str], set[str], set[str]]:
    """Return the names that a statement binds, reads as it runs, and reads in functions."""
    top = symtable.symtable("\n".join(lines), "cell", "exec")
    symbols = top.get_symbols()
    binds = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    eager = {s.get_name() for s in symbols if s.is_referenced()}
    lazy: set[str] = set()
    tables = [(table, False) for table in top.get_children()]
    while tables:
        table, in_function = tables.pop()
        is_function = table.get_type() == "function"
        in_function |= is_function and table.get_name() not in COMPREHENSIONS
        names = {
            s.get_name()
            for s in table.get_symbols()  # a class body may read a name before binding it
            if s.is_global() or (s.is_referenced() and not is_function)
        }
        (lazy if in_function else eager).update(names)
        tables += [(child, in_function) for child in table.get_children()]
    return binds, eager, lazy


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run with a statement: all except the bodies of functions."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        yield node
        if isinstance(node, FUNCTIONS):
            nodes.append(node.args)
            nodes += [] if isinstance(node, ast.Lambda) else node.decorator_list
        else:
            nodes += ast.iter_child_nodes(node)


def _touched(node: ast.stmt) -> Iterator[str]:
    """Yield `CACHE` of `CACHE["x"] = 1` and `area` of `@area.register`."""
    for part in _running(node):
        if isinstance(part, (ast.Attribute, ast.Subscript)) and not isinstance(part.ctx, ast.Load):
            yield from _root(part)
    for decorator in node.decorator_list if isinstance(node, DEFINITIONS) else []:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Attribute):
            yield from _root(called)


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _calls(node: ast.stmt) -> bool:
    if isinstance(node, DEFINITIONS) and node.decorator_list:
        return True
    return any(isinstance(part, (ast.Call, ast.Await)) for part in _running(node))
