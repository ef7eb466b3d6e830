"""Trusted: the task of N ranks: a function and its inputs.

Inputs can be split: each rank receives only its own part. A rank with the inputs of all ranks could
compute the result without communication.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradsync.ranks.protocol import pickles
from gradsync.ranks.protocol.events import MAX_RANKS
from gradsync.ranks.protocol.faults import Fault
from gradsync.ranks.protocol.user_files import is_users
from gradsync.ranks.protocol.wire import MAX_TASK
from gradsync.text import full_stop, listed

RESERVED = {"rank", "world_size"}
_packing: ContextVar[_Packing] = ContextVar("packing")


@dataclass(frozen=True)
class Task:
    """A function for N ranks; its parameters are filled by name.

    `rank` and `world_size` are set on each rank. For a name in `modules`, the rank imports the file
    and passes the module. All other arguments come from `inputs`.
    """

    function: Callable[..., Any]
    world_size: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    modules: Mapping[str, Path] = field(default_factory=dict)
    # Names of modules -> the files to import instead; other names in them raise when called.
    substitutes: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[Path, ...] = ()  # a message may name lines in these; empty: all but libraries
    path: tuple[str, ...] = ()  # inserted before the ranks' sys.path
    readable: tuple[Path, ...] = ()  # further folders that ranks in a sandbox can read
    cwd: Path | None = None  # None: a private temporary folder
    environ: Mapping[str, str] | None = None  # None: the environment of the launcher
    authkey: bytes | None = None  # of this process: with it, proxies of its managers work
    process_group: bool = True  # start the default group before calling the function
    backend: str = "gloo"  # of the default group
    timeout: float = 60.0  # seconds; a deadlock is found much sooner
    processor_seconds: float = math.inf  # limit for each rank, independent of the machine's load
    may_fail: tuple[int, ...] = ()  # ranks that may die or be late: the others continue
    debugger: tuple[int, str] | None = None  # a rank, and the terminal in which pdb opens
    seed: str | None = None  # of the global random states, different on each rank; None: random
    nodes: int | None = None  # set torchrun's variables as on so many nodes; None: do not set them
    port: int | None = None  # MASTER_PORT
    mesh: Mapping[str, int] | None = None  # the size of each named dimension of the input `mesh`
    faults: tuple[Fault, ...] = ()
    schedule: int | None = None  # of the ranks that are late at their calls

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, got {self.function!r}")
        check_world_size(self.world_size)
        if not self.timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {self.timeout!r}")
        if not set(self.may_fail) < set(range(self.world_size)):
            raise ValueError(
                f"may_fail must be some, but not all, of the {self.world_size} ranks, "
                f"got {self.may_fail!r}"
            )
        if self.debugger is not None and self.debugger[0] not in range(self.world_size):
            raise ValueError(
                f"debug must be one of the {self.world_size} ranks, from 0 to "
                f"{self.world_size - 1}, got {self.debugger[0]!r}"
            )
        if self.nodes is not None and (self.nodes < 1 or self.world_size % self.nodes):
            raise ValueError(f"{self.world_size} ranks can't be divided among {self.nodes} nodes")
        if self.mesh is not None and math.prod(self.mesh.values()) != self.world_size:
            raise ValueError(f"the mesh {dict(self.mesh)} does not have {self.world_size} ranks")
        for fault in self.faults:
            if fault.rank not in range(self.world_size):
                raise ValueError(f"{fault}: there are {self.world_size} ranks, from 0")
        if taken := RESERVED & self.inputs.keys():
            raise ValueError(
                f"{listed(sorted(taken))} can't be an input: each rank has its own value"
            )
        self._check_arguments()

    def shows(self, file: str) -> bool:
        """Return whether a message may name a stack frame in `file`."""
        return is_users(file, tuple(map(str, self.roots)))

    def payloads(self) -> list[bytes]:
        """Return the pickled function and inputs of each rank.

        Raises:
            TypeError: they can't be sent to another process.
            ValueError: they are too large.
        """
        first, differs = self._payload(0)
        if not differs:
            return [first] * self.world_size
        return [first, *(self._payload(rank)[0] for rank in range(1, self.world_size))]

    def _payload(self, rank: int) -> tuple[bytes, bool]:
        """Return the pickled task of a rank, and whether it differs between ranks."""
        with _packing_for(rank) as packing:
            try:
                data = pickles.pack(self.function, dict(self.inputs))
            except pickles.UNPICKLABLE as error:
                names = (name for name, value in self.inputs.items() if not pickles.fits(value))
                culprit = next((f"the input {name!r}" for name in names), _name(self.function))
                raise TypeError(
                    f"{culprit} can't be sent to other processes: {full_stop(str(error))} Make it "
                    "on the rank; run_ranks returns what the function returns on each rank."
                ) from None
        if len(data) > MAX_TASK:
            raise ValueError(
                f"the inputs have {len(data):,} bytes: at most {MAX_TASK:,} can be sent to a rank"
            )
        return data, packing.differs

    def header(self, rank: int, directory: str, began: float, nonce: str) -> dict[str, Any]:
        """Return the header of the message that starts `rank`."""
        return {
            "rank": rank,
            "world_size": self.world_size,
            "directory": directory,
            "cwd": str(self.cwd or directory),
            "environ": None if self.environ is None else {**self.environ, **self._torchrun(rank)},
            "modules": {name: str(path) for name, path in self.modules.items()},
            "substitutes": dict(self.substitutes),
            "roots": [str(root) for root in self.roots],
            "path": list(self.path),
            "authkey": self.authkey and self.authkey.hex(),
            "process_group": self.process_group,
            "backend": self.backend,
            "seed": self._seed_of(rank),
            "debugger": self.debugger,
            "mesh": self.mesh and dict(self.mesh),
            "faults": [fault.plain() for fault in self.faults],
            "schedule": self.schedule,
            "began": began,
            "nonce": nonce,
        }

    def _torchrun(self, rank: int) -> dict[str, str]:
        """Return the variables that torchrun sets, if they are wanted."""
        if self.nodes is None:
            return {}
        per_node = self.world_size // self.nodes
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": rank % per_node,
            "GROUP_RANK": rank // per_node,
            "ROLE_RANK": rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": per_node,
            "GROUP_WORLD_SIZE": self.nodes,
            "ROLE_WORLD_SIZE": self.world_size,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        names = {"MASTER_ADDR": "127.0.0.1", "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "none"}
        return {**names, **{name: str(number) for name, number in numbers.items()}}

    def _seed_of(self, rank: int) -> int:
        return random.Random(self.seed and f"{self.seed}, rank {rank}").getrandbits(32)

    def _check_arguments(self) -> None:
        """Raise TypeError now if the function can't be called like this on the ranks."""
        try:
            signature = inspect.signature(self.function)
        except ValueError:  # a builtin without a signature
            return
        offered = dict.fromkeys((*RESERVED, *self.modules, *(["mesh"] if self.mesh else [])))
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


class _Packing:
    """The rank for which inputs are being pickled, and whether they differ between ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.differs = False


class OfRanks:
    """One item for each rank; on a rank it becomes a dict with only that rank's item."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __reduce__(self) -> tuple[type[dict[int, Any]], tuple[list[tuple[int, Any]]]]:
        packing = _packing.get()
        packing.differs = True
        return dict, ([(packing.rank, self._items[packing.rank])],)


def by_rank(items: Any, depth: int = 0) -> Any:
    """Split inputs: each rank receives only `items[rank]`, at each index of `depth` outer axes."""
    if depth:
        return [by_rank(item, depth - 1) for item in items]
    return OfRanks(items)


@contextmanager
def _packing_for(rank: int) -> Iterator[_Packing]:
    """Set the rank that inputs are pickled for, while the block runs."""
    packing = _Packing(rank)
    token = _packing.set(packing)
    try:
        yield packing
    finally:
        _packing.reset(token)
