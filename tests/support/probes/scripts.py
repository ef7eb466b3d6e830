"""Run a submission's file as a program, with its own sampler and with broken ones."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from support.probes.printing import printed
from support.probes.sampling import indices_of

Share = list[int]
WITHOUT = 9  # the sample that is left out of all shares


def _whole(share: Callable[[int], Share], rank: int, _size: int) -> Share:
    return share(rank)


def _unequal(share: Callable[[int], Share], rank: int, size: int) -> Share:
    return share(rank)[:-1] if rank == size - 1 else share(rank)


def _incomplete(share: Callable[[int], Share], rank: int, _size: int) -> Share:
    return [WITHOUT - 1 if index == WITHOUT else index for index in share(rank)]


def _alike(share: Callable[[int], Share], _rank: int, _size: int) -> Share:
    return share(0)


SHARINGS = {"whole": _whole, "unequal": _unequal, "incomplete": _incomplete, "alike": _alike}


def run_with_samplers(file: str, sampler_class: type) -> dict[str, dict[str, Any]]:
    """Run a file as `python FILE` does, once with each way of sharing.

    Args:
        file: a file that defines a sampler class.
        sampler_class: this class, from another run of the file.

    Returns:
        For each way of sharing: the printed `lines`, with the error that ends the program;
        `raised`, the text of this error and its line, or None; `shares` that the samplers yield,
        as [samples, ranks, rank, indices].

    Raises:
        NotImplementedError: the sampler is not written yet.
    """
    path, name = Path(file), sampler_class.__name__
    tree = ast.parse(path.read_bytes())
    asks = [node for node in tree.body if _asks_for_main(node)]
    tree.body = [node for node in tree.body if node not in asks]
    last = ast.Module(asks, type_ignores=[])
    return {key: _run(path, tree, last, name, sharing) for key, sharing in SHARINGS.items()}


def _asks_for_main(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def _run(path: Path, body: ast.Module, last: ast.Module, name: str, sharing: Any) -> dict[str, Any]:
    """Run the file's body, replace its sampler class, and run the part for programs."""
    program = ModuleType("__main__")  # dataclasses, pickle and others look for the running module
    namespace = vars(program)
    namespace["__file__"] = str(path)
    shares: list[list[Any]] = []
    error: list[str] = []
    raised: list[str] | None = None
    sys.argv = [str(path)]
    with printed() as lines, _as_main(program):
        try:
            exec(compile(body, str(path), "exec", dont_inherit=True), namespace)
            namespace[name] = _sampler(namespace[name], sharing, shares)
            exec(compile(last, str(path), "exec", dont_inherit=True), namespace)
        except NotImplementedError:
            raise
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - it may report wrong shares
            error = [f"{type(problem).__name__}: {problem}"]
            if isinstance(problem, Exception):
                raised = [*error, _line_of(problem, path)]
    return {"lines": lines + error, "raised": raised, "shares": shares}


@contextmanager
def _as_main(program: ModuleType) -> Iterator[None]:
    before = sys.modules["__main__"]
    sys.modules["__main__"] = program
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _line_of(problem: Exception, path: Path) -> str:
    """Return the innermost line of the file that led to an exception: "loader.py:12"."""
    frames = traceback.walk_tb(problem.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == str(path)]
    return f"{path.name}:{lines[-1]}" if lines else path.name


def _sampler(plain: type, sharing: Any, shares: list[list[Any]]) -> type:
    """Return a subclass of the sampler class `plain` with this way of sharing."""

    class Sampler(plain):  # type: ignore[misc]
        _shared_out: Share | None = None  # set at the end of its own `__init__`

        def __init__(self, dataset: Any, num_replicas: int, rank: int, **options: Any) -> None:
            super().__init__(dataset, num_replicas, rank, **options)

            def share(rank: int) -> Share:
                return indices_of(plain(dataset, num_replicas, rank, **options))

            self._shared_out = sharing(share, rank, num_replicas)
            self._place = [len(dataset), num_replicas, rank]

        def __iter__(self) -> Iterator[int]:
            if self._shared_out is None:
                return iter(super().__iter__())
            shares.append([*self._place, self._shared_out])
            return iter(self._shared_out)

        def __len__(self) -> int:
            return int(super().__len__()) if self._shared_out is None else len(self._shared_out)

    return Sampler
