"""Checks of Python, the cores, other processes, and shared memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gradsync.cores import available_cores
from gradsync.finding import Finding, Subject
from gradsync.text import counted, size_text

OLDEST, NEWEST = (3, 10), (3, 13)
BACKGROUND = 0.7  # the load of an idle machine, which does not disturb the ranks
NEEDED_SHARED_MEMORY = 64 * 2**20  # bytes; containers often have no more than this in total
PYTHON = Subject("Python", "torch and gradsync support only some versions")
CORES = Subject("cores", "ranks and threads that share a core slow each other down")
LOAD = Subject("load", "all ranks wait for the slowest one, so one busy core slows all of them")
SHARED_MEMORY = Subject(
    "/dev/shm", "workers of a DataLoader and nccl pass data through it; if it is full, ranks crash"
)


def python(version: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Check the version of Python."""
    found = f"{version[0]}.{version[1]} in {sys.prefix}"
    if version < OLDEST:
        return PYTHON.failed(found, "Use Python 3.10 or later.")
    if version > NEWEST:
        return PYTHON.warning(found, "If packages can't be installed, use Python 3.13.")
    return PYTHON.ok(found)


def cores(environ: Mapping[str, str], ranks: int, available: int | None = None) -> Finding:
    """Compare ranks times threads with the cores that this process may use."""
    available = available or available_cores()
    given = environ.get("OMP_NUM_THREADS", "")
    if given and not (given.isdecimal() and int(given)):
        found = f"OMP_NUM_THREADS={given} is not a positive integer"
        return CORES.failed(found, "Set OMP_NUM_THREADS=1, or unset it.")
    threads = int(given) if given else max(1, available // ranks)
    found = (
        f"{counted(ranks, 'rank')} with {counted(threads, 'thread')} each on "
        f"{counted(available, 'core')}" + (f" (OMP_NUM_THREADS={given})" if given else "")
    )
    if ranks * threads <= available:
        return CORES.ok(found)
    remedy = f"Set OMP_NUM_THREADS={max(1, available // ranks)}, or unset it."
    if ranks > available:
        remedy = f"Use --nproc {available}: with more ranks, training is slower, though correct."
    return CORES.warning(found, remedy)


def load(ranks: int, others: float | None = None, available: int | None = None) -> Finding:
    """Check that other processes leave enough cores for the ranks.

    Args:
        ranks: the number of ranks on this machine.
        others: the load of other processes; default: the load average of the last minute.
        available: the number of cores that this process may use.
    """
    available = available or available_cores()
    others = os.getloadavg()[0] if others is None else others
    found = f"an average load of {others:.1f} in the last minute, on {counted(available, 'core')}"
    if others + min(ranks, available) <= available + BACKGROUND:
        return LOAD.ok(found)
    return LOAD.warning(
        found,
        "`top` shows which programs run. Wait until they have ended, or expect slower steps and "
        "times that vary.",
    )


def shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Check the free space in shared memory."""
    remedy = (
        "In a container, add --shm-size=1g to `docker run`. On a machine, delete old files in "
        "/dev/shm."
    )
    try:
        state = os.statvfs(folder)
    except OSError as problem:
        return SHARED_MEMORY.failed(f"not usable: {problem.strerror}", remedy)
    if not os.access(folder, os.W_OK):
        return SHARED_MEMORY.failed("not writable", f"Run: chmod 1777 {folder}")
    free = state.f_bavail * state.f_frsize
    found = f"{size_text(free)} free of {size_text(state.f_blocks * state.f_frsize)}"
    if free < NEEDED_SHARED_MEMORY:
        return SHARED_MEMORY.failed(found, remedy)
    return SHARED_MEMORY.ok(found)
