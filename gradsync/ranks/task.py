"""What N ranks are to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from gradsync.ranks.events import MAX_RANKS

RESERVED = {"rank", "world_size"}


@dataclass(frozen=True)
class Task:
    """A function for N ranks; its parameters are filled by name.

    `rank` and `world_size` are the rank's own, a name in `modules` is the file there, imported on
    the rank, and the rest comes from `inputs`.
    """

    function: Callable[..., Any]
    world_size: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, Path] = field(default_factory=dict)
    roots: tuple[Path, ...] = ()  # whose lines an explanation may name; empty: all but libraries'
    path: tuple[str, ...] = ()  # goes before the ranks' own sys.path
    cwd: Path | None = None  # None: a private temporary folder
    process_group: bool = True  # the default group is started before the function is called
    timeout: float = 60.0  # seconds, for endless loops: a deadlock is proved long before

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, got {self.function!r}")
        if type(self.world_size) is not int or not 1 <= self.world_size <= MAX_RANKS:
            raise ValueError(f"world_size must be from 1 to {MAX_RANKS}, got {self.world_size!r}")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {self.timeout!r}")
        if taken := RESERVED & self.inputs.keys():
            raise ValueError(
                f"{' and '.join(sorted(taken))} come from the rank itself, not as input"
            )

    def shows(self, file: str) -> bool:
        """Tell whether a rank's stack frame in `file` is worth naming."""
        if self.roots:
            return file.startswith(tuple(map(str, self.roots)))
        libraries = (sys.prefix, sys.base_prefix, str(Path(__file__).parent.parent), "<")
        return "site-packages" not in file and not file.startswith(libraries)

    def payload(self) -> bytes:
        """Return the function and its inputs as a rank unpickles them."""
        with _by_value(sys.modules.get(self.function.__module__)):
            return bytes(cloudpickle.dumps((self.function, dict(self.inputs))))

    def header(self, rank: int, directory: str, began: float) -> dict[str, Any]:
        """Return what else `rank` is told."""
        return {
            "rank": rank,
            "world_size": self.world_size,
            "store": str(Path(directory) / "store"),
            "cwd": str(self.cwd or directory),
            "modules": {name: str(path) for name, path in self.modules.items()},
            "roots": [str(root) for root in self.roots],
            "path": list(self.path),
            "process_group": self.process_group,
            "began": began,
        }


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Have helpers that stand in the function's own module travel with it.

    The ranks can't import a test module, nor a notebook: it may not be on their path at all.
    """
    if module is None or module.__name__ in ("__main__", *sys.builtin_module_names):
        yield
        return
    known = module.__name__ in cloudpickle.list_registry_pickle_by_value()
    if not known:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if not known:
            cloudpickle.unregister_pickle_by_value(module)
