"""Check that the course and the grader work on this machine, by trying each part."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version

from gradsync.course.catalogue import CourseError, find_course
from gradsync.errors import SandboxError
from gradsync.finding import Finding
from gradsync.mnist import check_data
from gradsync.ranks import LauncherError, RankFailure, get_launcher, run_ranks
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.ranks.sandbox import cgroups
from gradsync.ranks.sandbox.sandbox import RUN_MEMORY, TASKS, check
from gradsync.text import listed

MIB = 2**20
WORLD_SIZE = 2
LAUNCHERS: tuple[LauncherName | None, ...] = (None, "sandbox")  # None: the fastest one
ERRORS_OF_OURS = (CourseError, LauncherError, RankFailure, SandboxError)


def examine() -> Iterator[Finding]:
    """Yield the result of each check; some take seconds."""
    for launcher in LAUNCHERS:  # their processes import torch at the same time
        with suppress(ValueError, OSError):  # the check of this launcher reports it
            get_launcher(launcher).warm_up()
    yield _python()
    yield _look("ranks", lambda: _meet(None))
    yield _look("sandbox", _sandbox)
    yield _look("course", _course)
    yield check_data()
    # Seen by a rank, so that this process need not import torch.
    yield _look("GPUs", lambda: str(run_ranks(gpus, 1, process_group=False)[0]))


def _look(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, "ok", look())
    except (*ERRORS_OF_OURS, OSError, ValueError) as problem:
        return Finding(what, "failed", str(problem))


def _python() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / MIB / 1024
    return Finding(
        "machine",
        "ok",
        f"{platform.system()}, {os.cpu_count()} cores, {memory:.0f} GiB; "
        f"Python {platform.python_version()}, torch {version('torch')}",
    )


def _meet(launcher: LauncherName | None) -> str:
    run_ranks(all_reduce, WORLD_SIZE, launcher=launcher)  # the first run waits for torch
    seen = run_ranks(all_reduce, WORLD_SIZE, launcher=launcher)
    return f"{WORLD_SIZE} ranks start, all-reduce over gloo and end in {seen.seconds * 1000:.0f} ms"


def all_reduce() -> None:
    """Run one collective with the other ranks."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))


def _sandbox() -> str:
    check(find_course(carried=True).root)
    limits = "no control group is available: gradsync itself limits the ranks' resources"
    if (group := cgroups.make(RUN_MEMORY, TASKS)) is not None:
        group.close()
        limits = "a control group limits the resources of all ranks together"
    return f"bubblewrap works: {_meet('sandbox')}; {limits}"


def _course() -> str:
    course = find_course(carried=True)
    graded = course.graded_phases("hidden")
    return f"{course.root}, " + (
        f"with hidden tests for {listed(graded)}" if graded else "without hidden tests"
    )


def gpus() -> str:
    """Return a description of the GPUs that a rank can use."""
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        return "none; the course needs only gloo on the CPU"
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return f"{names}; nccl is {'available' if dist.is_nccl_available() else 'missing'}"
