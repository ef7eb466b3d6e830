"""The files of a review: their source, and the search for imported modules."""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gradsync.errors import UnusableInput

LARGEST = 2_000_000  # characters of a file
MOST_FILES = 60  # that are read in addition to the files that the user named
_IGNORE = re.compile(r"#\s*gradsync:\s*ignore(?:\[([A-Za-z0-9, ]*)\])?")
# Packages that are not followed: the rules use the names of their functions, or ignore them.
NOT_FOLLOWED = {
    "torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "PIL",
    "matplotlib", "tqdm", "wandb", "transformers", "datasets", "accelerate", "timm",
    "einops", "yaml", "cv2",
}  # fmt: skip
_DISTRIBUTED = re.compile("distributed|DataParallel|fully_shard|num_replicas|world_size")
_PARENTS = 3  # folders above a file that are searched for its imports


@dataclass(eq=False)
class Source:
    """A file of Python."""

    path: str  # as the user gave it
    text: str
    tree: ast.Module
    wanted: bool = True  # the user named it; others are read only for their functions

    @cached_property
    def ignored(self) -> Mapping[int, frozenset[str]]:
        """The codes in the ignore comment of each line that has one; "" means all codes."""
        if "gradsync:" not in self.text:
            return {}
        found = {}
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            comment = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
            if comment:
                codes = [code.strip().upper() for code in (comment[1] or "").split(",")]
                found[token.start[0]] = frozenset(codes)
        return found

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, outer ones first."""
        return list(ast.walk(self.tree))

    @cached_property
    def node_set(self) -> set[ast.AST]:
        """All nodes of the tree, to search in."""
        return set(self.nodes)

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, outer ones first."""
        return [n for n in self.nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text."""
        return self.text.splitlines()

    def column(self, line: int, offset: int) -> int:
        """Convert a syntax tree's offset in bytes to a column, counted from 1."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return len(text.encode()[:offset].decode(errors="ignore")) + 1

    @property
    def is_distributed(self) -> bool:
        """Whether the text mentions names that programs on several ranks use."""
        return "torch" in self.text and bool(_DISTRIBUTED.search(self.text))


def parse(path: str, text: str, *, wanted: bool = True) -> Source:
    """Return a file's source.

    Raises:
        UnusableInput: if it is not Python code, or too large.
    """
    if len(text) > LARGEST:
        raise UnusableInput(f"{path} has {len(text):,} characters. The limit is {LARGEST:,}.")
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UnusableInput(
            f"{path}:{error.lineno}: Python can't read this line: {error.msg}. Fix it, then review "
            "the file again."
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise UnusableInput(f"Python can't read {path}: it is not source code.") from None
    return Source(path, text, tree, wanted)


def read(path: Path) -> Source:
    """Return the source of a file on disk.

    Raises:
        UnusableInput: if it can't be read, or is not Python code.
    """
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UnusableInput(f"{path} can't be read: {reason}.") from None
    return parse(str(path), text)


class Project:
    """All files that a review may read."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.sources = list(sources)
        self._by_path = {_key(source.path): source for source in self.sources}
        self._missing: set[str] = set()
        self._read = 0

    def find(self, importer: Source, module: str, level: int) -> Source | None:
        """Return the file of an imported module, if it belongs to the project.

        Args:
            importer: the file with the import.
            module: "a.b" of `import a.b` or `from a.b import c`.
            level: the number of dots before it.
        """
        root = module.partition(".")[0]
        if not level and root in sys.stdlib_module_names:
            return None
        folder = Path(os.path.abspath(importer.path)).parent  # noqa: PTH100 - links stay as they are
        folders = [folder, *folder.parents][: _PARENTS + 1]
        if not level and root in NOT_FOLLOWED:
            folders = folders[:1]  # a file beside the script hides an installed package
        if level:
            folders = folders[level - 1 : level]
        inside = Path(*module.split(".")) if module else Path()
        for start in folders:
            for name in (f"{inside}.py" if module else "__init__.py", inside / "__init__.py"):
                found = self._at(start / name)
                if found is not None:
                    return None if found is importer else found
        return None

    def _at(self, path: Path) -> Source | None:
        key = _key(str(path))
        if key in self._missing:
            return None
        if key not in self._by_path:
            if self._read >= MOST_FILES or not path.is_file():
                self._missing.add(key)
                return None
            self._read += 1
            try:
                source = read(path)
            except UnusableInput:  # the user did not name this file
                self._missing.add(key)
                return None
            source.wanted = False
            self._by_path[key] = source
        return self._by_path[key]


def _key(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - much faster than Path.resolve
