"""Trusted: a control group, through which the kernel limits the resources of all ranks together.

It is available if this process may create one: for root on most systems, and for users with a
delegated branch. Both versions of the kernel's interface are supported: one tree with all
controllers, and the older one with a separate tree for each.

Sources: cgroups(7); cgroup-v2, cgroup-v1/memory and cgroup-v1/pids of the kernel's admin guide.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TREES = Path("/proc/self/mountinfo")
OURS = Path("/proc/self/cgroup")
NAME = "gradsync-{process}-{number}"
CONTROLLERS = {"memory", "pids"}
OUT_OF_MEMORY = ("memory.events", "memory.oom_control")  # in the newer tree, and in the older ones

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Refusals:
    """How often the kernel has refused something to the processes of a group."""

    memory: int = 0  # each time, it killed a process
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of one group; they are the same if one tree has all controllers."""

    memory: Path
    tasks: Path

    def join(self) -> None:
        """Move this process into the group; the processes it starts later are in it, too."""
        for folder in {self.memory, self.tasks}:
            (folder / "cgroup.procs").write_text("0")

    def folders(self) -> dict[str, str]:
        """Return the folders as text, for another process that will join."""
        return {"memory": str(self.memory), "tasks": str(self.tasks)}

    def refusals(self) -> Refusals:
        """Return the refusals since the group was created."""
        [events] = [path for name in OUT_OF_MEMORY if (path := self.memory / name).exists()]
        return Refusals(_field(events, "oom_kill"), _field(self.tasks / "pids.events", "max"))

    def close(self) -> None:
        """Remove the group, once all its processes have ended."""
        for folder in {self.memory, self.tasks}:
            with suppress(OSError):  # processes in it must end first
                folder.rmdir()


def joined(folders: dict[str, str]) -> ControlGroup | None:
    """Join the group with these folders; return None if this process may not.

    Processes that are forked later are in the group, too.
    """
    group = ControlGroup(Path(folders["memory"]), Path(folders["tasks"]))
    try:
        group.join()
    except OSError:  # belongs to another user, as seen from this user namespace
        return None
    return group


def make(memory: int, tasks: int) -> ControlGroup | None:
    """Create a group limited to so many bytes and so many processes and threads, if possible."""
    with suppress(OSError):  # a system without such trees
        for places in _places():
            folders: list[Path] = []
            try:
                for place in places:
                    folders.append(_make_folder(place))
                group = ControlGroup(folders[0], folders[-1])
                _limit(group, memory, tasks)
            except OSError:
                for folder in folders:
                    folder.rmdir()
            else:
                return group
    return None


def _limit(group: ControlGroup, memory: int, tasks: int) -> None:
    """Set the limits, under the names that this system uses; swapped memory counts, too."""
    limits = {
        group.memory / "memory.max": memory,
        group.memory / "memory.swap.max": 0,
        group.memory / "memory.limit_in_bytes": memory,
        group.memory / "memory.memsw.limit_in_bytes": memory,
        group.tasks / "pids.max": tasks,
    }
    for limit, most in limits.items():
        if limit.exists():
            limit.write_text(str(most))


def _make_folder(place: Path) -> Path:
    """Create a folder for this process, and remove the folders of graders that were killed."""
    for other in place.glob(NAME.format(process="*", number="*")):
        if not Path("/proc", other.name.split("-")[1]).exists():
            with suppress(OSError):  # it still contains processes
                other.rmdir()
    folder = place / NAME.format(process=os.getpid(), number=next(_numbers))
    folder.mkdir()
    return folder


def _places() -> Iterator[Sequence[Path]]:
    """Yield places for a group: one folder for all controllers, or one for each."""
    ours = dict(_our_groups())
    trees = dict(_mounted_trees())
    if "" in trees and "" in ours:
        own = _inside(trees[""], ours[""])
        # In the newer tree, a group that contains processes can't have subgroups with limits.
        for place in (own.parent, own) if ours[""] != "/" else (own,):
            with suppress(OSError):
                if set((place / "cgroup.subtree_control").read_text().split()) >= CONTROLLERS:
                    yield [place]
    if trees.keys() & ours.keys() >= CONTROLLERS:
        yield [_inside(trees[name], ours[name]) for name in sorted(CONTROLLERS)]


def _our_groups() -> Iterator[tuple[str, str]]:
    """Yield pairs of a controller and this process's group; "" stands for the newer tree."""
    for line in OURS.read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _mounted_trees() -> Iterator[tuple[str, Path]]:
    """Yield pairs of a controller and its mount point; "" stands for the newer tree."""
    for line in TREES.read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mounted = Path(before.split()[4])
        if kind == "cgroup2":
            yield "", mounted
        elif kind == "cgroup":
            for name in CONTROLLERS & set(options.split(",")):
                yield name, mounted


def _inside(tree: Path, path: str) -> Path:
    return tree / path.lstrip("/")


def _field(file: Path, field: str) -> int:
    """Return the number after a field's name."""
    return int(dict(line.split() for line in file.read_text().splitlines())[field])
