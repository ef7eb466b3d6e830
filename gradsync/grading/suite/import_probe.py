"""Compile and import a learner's files on a rank, and find the functions without a body."""

from __future__ import annotations

import ast
import importlib
import py_compile
import tempfile
from contextlib import suppress
from pathlib import Path

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def load_files(paths: list[str]) -> list[tuple[bytes | None, list[str]]]:
    """Compile and import files; return each file's bytecode, if any, and the names of its stubs.

    Raises:
        BaseException: whatever an import raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [_load(path, folder) for path in paths]


def _load(path: str, folder: str) -> tuple[bytes | None, list[str]]:
    code, names = None, []
    with suppress(py_compile.PyCompileError, ValueError, MemoryError, RecursionError):
        cache = py_compile.compile(path, str(Path(folder) / "cache"), doraise=True)
        code = Path(cache).read_bytes() if cache else None
        names = stubs(Path(path).read_bytes())
    importlib.import_module(Path(path).stem)
    return code, names


def stubs(source: bytes) -> list[str]:
    """Return the functions and classes of a module whose last definition has no body yet."""
    last = {node.name: node for node in ast.parse(source).body if isinstance(node, DEFINITIONS)}
    return [name for name, node in last.items() if _is_stub(node)]


def _is_stub(node: ast.stmt) -> bool:
    """Return whether a function, or a class with all its methods, is still to be written."""
    if isinstance(node, ast.ClassDef) and any(isinstance(n, DEFINITIONS) for n in node.body):
        return all(_is_stub(inner) or _is_empty(inner) for inner in node.body)
    return isinstance(node, DEFINITIONS) and all(map(_is_empty, node.body))


def _is_empty(node: ast.stmt) -> bool:
    """Return whether a statement is only a placeholder for a body."""
    match node:
        case ast.Pass() | ast.Expr(ast.Constant()):  # a docstring, or ...
            return True
        case ast.Return(None) | ast.Return(ast.Constant(None)):
            return True
        case ast.Raise(ast.Name("NotImplementedError")):
            return True
        case ast.Raise(ast.Call(ast.Name("NotImplementedError"))):
            return True
    return False
