"""What N ranks are to do."""

from __future__ import annotations

import inspect
import math
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradsync.ranks import pickles
from gradsync.ranks.events import MAX_RANKS
from gradsync.ranks.inputs import packing_for
from gradsync.ranks.places import is_users
from gradsync.ranks.wire import MAX_TASK

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
    readable: tuple[Path, ...] = ()  # folders that ranks in a sandbox see besides the roots
    cwd: Path | None = None  # None: a private temporary folder
    environ: Mapping[str, str] | None = None  # None: what the launcher starts its processes with
    process_group: bool = True  # the default group is started before the function is called
    timeout: float = 60.0  # seconds, for endless loops: a deadlock is proved long before
    processor_seconds: float = math.inf  # that each rank may use: a loop ends by it on any machine
    casualties: tuple[int, ...] = ()  # ranks that may die or be late: the others go on without
    seed: str | None = None  # of the ranks' global random states, each another; None: by chance

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, got {self.function!r}")
        check_world_size(self.world_size)
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {self.timeout!r}")
        if not set(self.casualties) < set(range(self.world_size)):
            raise ValueError(
                f"casualties must be some of the {self.world_size} ranks and not all, "
                f"got {self.casualties!r}"
            )
        if taken := RESERVED & self.inputs.keys():
            raise ValueError(
                f"{' and '.join(sorted(taken))}: the rank's own, can't be given as input"
            )
        self._check_arguments()

    def shows(self, file: str) -> bool:
        """Tell whether a rank's stack frame in `file` is worth naming."""
        return is_users(file, tuple(map(str, self.roots)))

    def payloads(self) -> list[bytes]:
        """Return the function and its inputs as each rank unpickles them.

        Raises:
            TypeError: something among them can't be sent to another process.
            ValueError: they are too large.
        """
        first, differs = self._payload(0)
        if not differs:
            return [first] * self.world_size
        return [first, *(self._payload(rank)[0] for rank in range(1, self.world_size))]

    def _payload(self, rank: int) -> tuple[bytes, bool]:
        """Return what a rank unpickles, and whether another one's differs."""
        with packing_for(rank) as packing:
            try:
                data = pickles.pack(self.function, dict(self.inputs))
            except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
                name = _name(self.function)
                text = f"{name} and its inputs go to other processes, and can't: {error}"
                raise TypeError(text) from error
        if len(data) > MAX_TASK:
            raise ValueError(
                f"the inputs have {len(data):,} bytes, of which {MAX_TASK:,} can be sent to a rank"
            )
        return data, packing.differs

    def header(self, rank: int, directory: str, began: float, nonce: str) -> dict[str, Any]:
        """Return what else `rank` is told."""
        return {
            "rank": rank,
            "world_size": self.world_size,
            "directory": directory,
            "cwd": str(self.cwd or directory),
            "environ": None if self.environ is None else dict(self.environ),
            "modules": {name: str(path) for name, path in self.modules.items()},
            "roots": [str(root) for root in self.roots],
            "path": list(self.path),
            "process_group": self.process_group,
            "seed": self._seed_of(rank),
            "began": began,
            "nonce": nonce,
        }

    def _seed_of(self, rank: int) -> int:
        return random.Random(self.seed and f"{self.seed}, rank {rank}").getrandbits(32)

    def _check_arguments(self) -> None:
        """Tell now, and here, that the function can't be called like this on the ranks."""
        try:
            signature = inspect.signature(self.function)
        except ValueError:  # a builtin that does not tell
            return
        offered = dict.fromkeys((*RESERVED, *self.modules))
        given = {name: None for name in offered if name in signature.parameters}
        try:
            signature.bind(**given, **self.inputs)
        except TypeError as error:
            raise TypeError(
                f"{_name(self.function)}{signature} can't be called by name with "
                f"{', '.join([*given, *self.inputs]) or 'nothing'}: {error}"
            ) from None


def check_world_size(size: Any) -> None:
    """Raise ValueError for a number of ranks that can't be started."""
    if type(size) is not int or not 1 <= size <= MAX_RANKS:
        raise ValueError(f"world_size must be from 1 to {MAX_RANKS}, got {size!r}")


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
