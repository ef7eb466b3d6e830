"""`make soak`: grade two submissions over and over, half of the times on a busy machine.

Counts grades that differ from the first of their kind, and what they leave behind. Give another
number of grades than 500 as an argument.
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

from gradsync.bank import reference, wrong_submissions
from gradsync.course import Course, find_course
from gradsync.grading import grade
from gradsync.records import Report
from gradsync.submission import Submission

GRADES = 500
DEADLOCKS = "skips-missing-gradients"
SEED = 1
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20
TOLD = 25  # grades from one line of progress to the next
GROWTH = 1.05  # of the memory, from the first fifth of the grades to the last, that passes as flat


@dataclass(frozen=True, slots=True)
class Traces:
    """What this process and those that it started hold after a grade."""

    processes: int  # besides this one
    files: int  # in the temporary folder
    descriptors: int  # sockets and files that are open
    memory: float  # MiB that are resident


def main(times: int) -> int:
    """Grade, and print what differed and what was left; 1 if anything."""
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
                traces.append(_traces(apart_from=hogs))
                if len(traces) % TOLD == 0:
                    _progress(f"{len(traces)} of {times}, {load}", len(differing), traces[-1])
    return _tell(differing, before, traces, _traces())


def _grade(submission: Submission, course: Course) -> Report:
    return grade(submission, course, phases=["phase1"], seed=SEED)


def _fingerprint(report: Report) -> list[tuple[object, ...]]:
    return [(v.id, v.status, v.points, v.message, v.diagnosis) for v in report.verdicts]


def _progress(where: str, differing: int, now: Traces) -> None:
    print(f"{where}: {differing} differ, {now.memory:,.0f} MiB", flush=True)


@contextmanager
def _load(busy: bool) -> Iterator[set[int]]:
    """Keep every core busy meanwhile, if asked to, by processes of these ids."""
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


def _traces(apart_from: Collection[int] = ()) -> Traces:
    """Look at what is there now, without the processes that are part of the experiment."""
    family = [pid for pid in _descendants(os.getpid()) if pid not in apart_from]
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


def _tell(differing: list[str], before: Traces, traces: list[Traces], after: Traces) -> int:
    fifth = max(1, len(traces) // 5)
    memory = [trace.memory for trace in traces]
    early, late = statistics.median(memory[:fifth]), statistics.median(memory[-fifth:])
    left = {
        "processes": max(trace.processes for trace in traces) - before.processes,
        "files": after.files - before.files,
        "open descriptors": after.descriptors - before.descriptors,
    }
    print(*differing, sep="\n")
    print(f"{len(traces)} grades, half of them with all {_cores()} cores kept busy by others")
    print(f"differing verdicts: {len(differing)}")
    for what, count in left.items():
        print(f"{what} left behind: {max(count, 0)}")
    print(f"memory: {early:,.0f} MiB early, {late:,.0f} MiB late")
    return int(bool(differing) or max(left.values()) > 0 or late > GROWTH * early)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else GRADES))
