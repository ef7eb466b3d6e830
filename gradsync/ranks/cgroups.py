"""Trusted: a control group, with which the kernel itself limits what all ranks take together.

There is one where this process may make one: for root on most systems, and for anybody to whom a
branch is delegated. Both versions of the kernel's interface are known: one tree with all
controllers, and the older one with a tree each.

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
OUT_OF_MEMORY = ("memory.events", "memory.oom_control")  # of the newer tree, and of the older one

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Refusals:
    """How often the kernel said no to the processes of a group."""

    memory: int = 0  # and ended one of them
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The folders of one group, which are the same where one tree has all controllers."""

    memory: Path
    tasks: Path

    def join(self) -> None:
        """Put this process in, and all that it starts from now on."""
        for folder in {self.memory, self.tasks}:
            (folder / "cgroup.procs").write_text("0")

    def folders(self) -> dict[str, str]:
        """Return the folders as text, for the process that is to join."""
        return {"memory": str(self.memory), "tasks": str(self.tasks)}

    def refusals(self) -> Refusals:
        """Return what was refused since the group was made."""
        [events] = [path for name in OUT_OF_MEMORY if (path := self.memory / name).exists()]
        return Refusals(_field(events, "oom_kill"), _field(self.tasks / "pids.events", "max"))

    def close(self) -> None:
        """Remove it, once all in it have ended."""
        for folder in {self.memory, self.tasks}:
            with suppress(OSError):  # whoever is still in it has to end first
                folder.rmdir()


def joined(folders: dict[str, str]) -> ControlGroup | None:
    """Join the group with these folders; None where this process may not.

    All that is forked from now on is in it as well.
    """
    group = ControlGroup(Path(folders["memory"]), Path(folders["tasks"]))
    try:
        group.join()
    except OSError:  # another's, as seen from this user's namespace
        return None
    return group


def make(memory: int, tasks: int) -> ControlGroup | None:
    """Return a new group for so many bytes and so many processes and threads, if one can be had."""
    with suppress(OSError):  # a system that has no such trees
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
    """Set the limits, each by the name that it has here; memory on a disk counts as well."""
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
    """Make a folder of this process's; those that killed graders have left there go."""
    for other in place.glob(NAME.format(process="*", number="*")):
        if not Path("/proc", other.name.split("-")[1]).exists():
            with suppress(OSError):  # somebody is in it after all
                other.rmdir()
    folder = place / NAME.format(process=os.getpid(), number=next(_numbers))
    folder.mkdir()
    return folder


def _places() -> Iterator[Sequence[Path]]:
    """Yield where a group may be made: one folder for all controllers, or one for each."""
    ours = dict(_our_groups())
    trees = dict(_mounted_trees())
    if "" in trees and "" in ours:
        own = _inside(trees[""], ours[""])
        # In the newer tree a group with processes in it has no groups with limits below itself.
        for place in (own.parent, own) if ours[""] != "/" else (own,):
            with suppress(OSError):
                if set((place / "cgroup.subtree_control").read_text().split()) >= CONTROLLERS:
                    yield [place]
    if trees.keys() & ours.keys() >= CONTROLLERS:
        yield [_inside(trees[name], ours[name]) for name in sorted(CONTROLLERS)]


def _our_groups() -> Iterator[tuple[str, str]]:
    """Yield the group that this process is in, by controller; "" stands for the newer tree."""
    for line in OURS.read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            yield name, path


def _mounted_trees() -> Iterator[tuple[str, Path]]:
    """Yield where the trees can be seen, by controller; "" stands for the newer one."""
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
    """Return the number that stands behind its name."""
    return int(dict(line.split() for line in file.read_text().splitlines())[field])
