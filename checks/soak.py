"""`make soak`: grade two submissions again and again, half of the time on a busy machine.

The results are the numbers of grades that differ from the first grade of the same submission, and
of leftover processes, files and descriptors. The argument is the number of grades, by default 500.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gradsync.course.catalogue import Course, find_course
from gradsync.course.known_submissions import reference, wrong_submissions
from gradsync.grading.grade import grade
from gradsync.records import Report
from gradsync.submission import Submission

GRADES = 500
DEADLOCKS = "skips-missing-gradients"
SEED = 1
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
PROGRESS = 25  # number of grades between two lines of output
GROWTH = 1.05  # allowed ratio of memory in the last fifth of the grades to the first fifth


@dataclass(frozen=True, slots=True)
class Traces:
    """Resources of this process and of the processes that it started, after a grade."""

    processes: int  # besides this one
    files: int  # in the temporary folder
    descriptors: int  # open sockets and files
    memory: float  # resident MiB


def main(times: int) -> int:
    """Grade, print differences and leftovers; return 1 if there are any or memory has grown."""
    course = find_course(Path(__file__).parent)
    [deadlocking] = [w for w in wrong_submissions(course, "phase1") if w.name == DEADLOCKS]
    submissions = [reference(course), deadlocking.submission(course)]
    first = [_fingerprint(_grade(submission, course)) for submission in submissions]  # warm
    before = _traces()
    differing: list[str] = []
    traces: list[Traces] = []
    for load in ("idle", "busy"):
        with _load(load == "busy") as hogs:
            for index in range(times // 2):
                kind = index % len(submissions)
                seen = _fingerprint(_grade(submissions[kind], course))
                differing += [
                    f"{load}: {a} != {b}" for a, b in zip(first[kind], seen, strict=True) if a != b
                ]
                traces.append(_traces(without=hogs))
                if len(traces) % PROGRESS == 0:
                    _progress(f"{len(traces)} of {times}, {load}", len(differing), traces[-1])
    return _summarise(differing, before, traces, _traces())


def _grade(submission: Submission, course: Course) -> Report:
    return grade(submission, course, phases=["phase1"], seed=SEED)


def _fingerprint(report: Report) -> list[tuple[object, ...]]:
    return [(v.id, v.status, v.points, v.message, v.diagnosis) for v in report.verdicts]


def _progress(where: str, differing: int, now: Traces) -> None:
    print(f"{where}: {differing} differ, {now.memory:,.0f} MiB", flush=True)


@contextmanager
def _load(busy: bool) -> Iterator[set[int]]:
    """Keep every core busy with one process each if `busy`; yield the ids of the processes."""
    hogs = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(busy * _cores())]
    for hog in hogs:
        hog.start()
    try:
        yield {hog.pid for hog in hogs if hog.pid}
    finally:
        for hog in hogs:
            hog.kill()
            hog.join()


def _spin() -> None:
    while True:
        pass


def _cores() -> int:
    return os.cpu_count() or 1


def _traces(without: Collection[int] = ()) -> Traces:
    """Measure the resources in use now, without the processes `without`."""
    family = [pid for pid in _descendants(os.getpid()) if pid not in without]
    descriptors = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in family)
    resident = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in family]
    folder = Path(tempfile.gettempdir())
    return Traces(
        processes=len(family) - 1,
        files=len(list(folder.iterdir())),
        descriptors=descriptors,
        memory=sum(resident) * PAGE / MIB,
    )


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _descendants(int(child))


def _summarise(differing: list[str], before: Traces, traces: list[Traces], after: Traces) -> int:
    fifth = max(1, len(traces) // 5)
    memory = [trace.memory for trace in traces]
    early, late = statistics.median(memory[:fifth]), statistics.median(memory[-fifth:])
    left = {
        "processes": max(trace.processes for trace in traces) - before.processes,
        "files": after.files - before.files,
        "open descriptors": after.descriptors - before.descriptors,
    }
    print(*differing, sep="\n")
    print(
        f"{len(traces)} grades, half of them while other processes kept all {_cores()} cores busy"
    )
    print(f"differing verdicts: {len(differing)}")
    for what, count in left.items():
        print(f"{what} left behind: {max(count, 0)}")
    print(f"memory: {early:,.0f} MiB in the first fifth, {late:,.0f} MiB in the last fifth")
    return int(bool(differing) or max(left.values()) > 0 or late > GROWTH * early)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else GRADES))
