"""Decide how many submissions are graded at a time on this machine."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from gradsync.cores import available_cores
from gradsync.grading.suite.parallel import MOST

# Bytes of memory for a submission: the grader, the warm process and the ranks of two tests took
# 0.8 GiB in phase 1 (counting shared pages once). Wrong submissions may take more.
JOB_MEMORY = 1.25 * 2**30
KEPT_FREE = 1 * 2**30  # bytes for the rest of the machine


def default_jobs(submissions: int) -> int:
    """Return how many submissions to grade at a time, for the cores and the free memory here.

    A submission keeps about one core busy: its ranks wait for each other most of the time.
    """
    fitting = (_free_memory() - KEPT_FREE) / JOB_MEMORY
    return max(1, int(min(available_cores(), fitting, submissions)))


def parallel_tests(jobs: int) -> int | None:
    """Return how many tests of a submission run at a time; None leaves it to the suite's runner."""
    if jobs == 1:
        return None
    return max(1, min(MOST, available_cores() // jobs))


def _free_memory() -> float:
    """Return the memory that this process may still take, in bytes."""
    free = float("inf")
    with suppress(OSError, AttributeError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        free = int(found[1]) * 2**10 if found else free
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            group = Path("/sys/fs/cgroup")
            most = int((group / limit).read_text())
            free = min(free, most - int((group / used).read_text()))
    return free
