"""Grade submissions on the workers of a Dask cluster.

Each thread of a Dask worker keeps its own process, which grades one submission after the other. So
a submission can end only that process. A worker needs this package, the course at the same path,
and the same setup as the grader's own machine; it receives submissions and returns reports.
"""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from distributed import Client, Future, wait

from gradsync.errors import GraderError, UnusableInput
from gradsync.grading.fingerprint import course_digests
from gradsync.grading.processes.pool import PoolProcess, Results, with_retry
from gradsync.grading.tasks import Conditions, GradingTask, Perform, do, failed
from gradsync.records import Report

SECONDS = 30.0  # to find the scheduler
AHEAD = 2  # tasks for each thread of a worker: one that runs, and one that waits

Given = TypeVar("Given")
Result = TypeVar("Result")
_processes: dict[int, PoolProcess[GradingTask, Report]] = {}  # by thread of this Dask worker


def on_cluster(address: str, say: Callable[[str], None] = lambda _: None) -> Perform:
    """Return a function that does tasks on the workers of a Dask scheduler.

    Args:
        address: such as "tcp://10.0.0.1:8786", or the path of the scheduler's file.
        say: called with a sentence if grading has to wait for workers.

    Raises:
        UnusableInput: there is no scheduler.
    """
    is_file = Path(address).is_file()
    if ":" not in address and not is_file:
        raise UnusableInput(
            f"{address} is neither the address of a Dask scheduler, such as tcp://10.0.0.1:8786, "
            "nor an existing scheduler file."
        )
    place = {"scheduler_file": address} if is_file else {"address": address}
    try:
        client = Client(**place, timeout=SECONDS)
    except (OSError, ValueError) as problem:
        raise UnusableInput(
            f"There is no Dask scheduler at {address}: {problem}. Start one with `dask scheduler`, "
            "and workers with `dask worker ADDRESS`."
        ) from None

    if not client.nthreads():
        say("The cluster has no workers yet. Grading begins when one connects.")

    def perform(tasks: Iterator[GradingTask]) -> Iterator[tuple[GradingTask, Report | None]]:
        with client:
            try:
                yield from spread(client, grade_here, tasks)
            finally:
                client.run(end_processes, on_error="ignore")  # a worker may have been lost

    return perform


def spread(
    client: Client, work: Callable[[Given], Result | None], tasks: Iterable[Given]
) -> Results[Given, Result]:
    """Yield each task with its result, or with None if the workers that did it died.

    If a worker dies, Dask moves its task to a different worker. It gives up after several deaths.
    """
    return with_retry(lambda some, alone: _once(client, work, some, alone=alone), tasks)


def _once(
    client: Client, work: Callable[[Given], Result | None], tasks: Iterable[Given], *, alone: bool
) -> Results[Given, Result]:
    waiting = iter(tasks)
    running: dict[Future[Any], Given] = {}
    try:
        while True:
            threads = sum(client.nthreads().values())  # workers may connect or leave
            most = 1 if alone else AHEAD * max(threads, 1)
            while len(running) < most and (task := next(waiting, None)) is not None:
                running[client.submit(work, task, pure=False)] = task
            if not running:
                return
            for future in wait(list(running), return_when="FIRST_COMPLETED").done:
                yield running.pop(future), future.result() if future.status == "finished" else None
    finally:
        client.cancel(list(running), force=True)


def grade_here(task: GradingTask) -> Report | None:
    """Grade a submission in this thread's process, or return None if the process died."""
    name, conditions = task.submission.name, task.conditions
    try:
        if _digest(conditions) != conditions.course_made:
            raise GraderError(
                "the course or the software differs from the machine that collects the grades. "
                "Install the same versions on the worker, and copy the course to it again"
            )
    except Exception as problem:  # noqa: BLE001 - the worker must go on
        return failed(name, GraderError(f"on {platform.node()}: {problem}"))
    thread = threading.get_ident()
    process = _processes.pop(thread, None) or PoolProcess(do)
    process.begin(task)
    result = process.result()
    if result is None:
        process.close()
    else:
        _processes[thread] = process
    return result


def end_processes() -> None:
    """End the processes of this Dask worker."""
    while _processes:
        _processes.popitem()[1].close()


@functools.lru_cache(maxsize=4)
def _digest(conditions: Conditions) -> tuple[str, ...]:
    return course_digests(conditions.course, conditions.phases)
