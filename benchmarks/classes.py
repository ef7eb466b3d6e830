"""Grading classes: submissions per minute, the load of the cores, and the grader's memory.

Classes of phase 1 mix the solution and known mistakes. The cheap exercise has one test on one rank.
In the same run, nbgrader and Otter-Grader grade a notebook that also has one answer and one test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from benchmarks import nbgrader, otter
from benchmarks.figure import Figure, seconds
from gradsync.class_records import Result
from gradsync.course.catalogue import Course, find_course
from gradsync.course.known_submissions import reference, wrong_submissions
from gradsync.grading.classes.results import read_class
from gradsync.grading.pages import write_class
from gradsync.grading.store import GradeStore

SIZES = (10, 100)  # submissions of phase 1
CHEAP = (10, 100, 1000)  # submissions of the cheap exercise
PER_MINUTE = 9.0  # submissions of phase 1, on two cores
BUSY = 0.9  # share of the time of all cores
FLAT = 1.25  # allowed ratio of the time per submission: the largest class to the next smaller one
GROWTH = 50.0  # MiB that the grader may need more for the largest class than for the smallest
GRADEBOOK_SECONDS = 2.0  # for the largest class
EXERCISES = """
[[exercise]]
name = "double"
file = "template_trainer.py"
guide = "Doubling"
goal = "twice the number"
hints = ["Add it to itself."]
"""
SUITE = '''
from gradsync.testing import check, exercise


@exercise("phase1/double", points=1)
def test_a_number_is_doubled(ranks):
    """The function returns twice the number."""

    def probe(trainer):
        return trainer.double(2)

    check(ranks(probe, 1, process_group=False)[0] == 4, "not-doubled", "The number is not doubled.")
'''


@dataclass(frozen=True)
class Run:
    """The measurements of a class."""

    size: int
    seconds: float
    busy: float  # share of the time of all cores, used by all processes of the machine
    memory: float  # MiB, the peak of the grader's own process

    @property
    def each(self) -> float:
        return self.seconds / self.size


def figures() -> Iterator[Figure]:
    otter.check_is_installed()  # before minutes of measuring
    with tempfile.TemporaryDirectory() as folder:
        yield from _phase1(Path(folder))
        yield from _cheap(Path(folder))


def _phase1(root: Path) -> Iterator[Figure]:
    course = find_course()
    mistakes = [wrong.submission(course) for wrong in wrong_submissions(course, "phase1")]
    files = [given.files for given in (reference(course), *mistakes[:: max(1, len(mistakes) // 9)])]
    for size in SIZES:
        run = _grade(root / f"phase1-{size}", course, list(islice(cycle(files), size)))
        rate = 60 * run.size / run.seconds
        wanted = PER_MINUTE * (os.cpu_count() or 1) / 2
        # A small class is half graded before all cores work.
        busy = BUSY if size == max(SIZES) else 0.0
        yield Figure(
            f"class of {size}, phase 1, solution and mistakes",
            f"{rate:.1f} a minute, cores {100 * run.busy:.0f}% busy",
            "",
            None,
            f"at least {wanted:g} a minute" + f", {100 * busy:.0f}% busy" * bool(busy),
            rate >= wanted and run.busy >= busy,
        )
    results = read_class(GradeStore(root / f"phase1-{size}" / "out"), course).results
    wrong = median(_seconds(each) for each in results if each.score != each.max_score)
    right = median(_seconds(each) for each in results if each.score == each.max_score)
    yield Figure(
        "a mistake in this class, median",
        f"{wrong:.1f} s",
        f"{right:.1f} s, the solution",
        wrong / right,
        "not slower than the solution",
        wrong <= right,
    )


def _seconds(result: Result) -> float:
    if result.seconds is None:
        raise SystemExit(f"{result.submission} was not graded.")
    return result.seconds


def _cheap(root: Path) -> Iterator[Figure]:
    course = Course(root / "course")
    suite = course.root / "tests" / "hidden" / "phase1"
    suite.mkdir(parents=True)
    (suite / "test_trainer.py").write_text(SUITE)
    (course.root / "phase1").mkdir()
    (course.root / "phase1" / "exercises.toml").write_text(EXERCISES)
    files = {"phase1/template_trainer.py": b"def double(number):\n    return 2 * number\n"}
    runs = [_grade(root / f"cheap-{size}", course, [files] * size) for size in CHEAP]
    first, *_, last = runs
    yield Figure(
        f"one submission of {', '.join(map(str, CHEAP))}, cheap exercise",
        ", ".join(f"{run.each:.2f} s" for run in runs),
        f"nbgrader {nbgrader.seconds_each(root / 'nbgrader'):.2f} s, "
        f"otter {otter.seconds_each(root / 'otter'):.2f} s",
        last.each / runs[-2].each,
        f"at most {FLAT:g} times as long in the largest class",
        last.each <= FLAT * runs[-2].each,
    )
    yield Figure(
        f"the grader's memory, classes of {first.size} and {last.size}",
        f"{first.memory:.0f} and {last.memory:.0f} MiB",
        "",
        last.memory / first.memory,
        f"at most {GROWTH:g} MiB more",
        last.memory <= first.memory + GROWTH,
    )
    out = root / f"cheap-{last.size}" / "out"
    took = seconds(lambda: write_class(GradeStore(out), course))
    yield Figure(
        f"gradebook of {last.size}", f"{took:.2f} s", "", None,
        f"under {GRADEBOOK_SECONDS:g} s", took < GRADEBOOK_SECONDS,
    )  # fmt: skip


def _grade(room: Path, course: Course, members: Sequence[dict[str, bytes]]) -> Run:
    """Grade a class with these files by `gradsync grade`, the command that staff use."""
    for number, files in enumerate(members):
        for path, source in files.items():
            target = room / "class" / f"learner-{number:04}" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source)
    command = [sys.executable, "-m", "gradsync", "grade", room / "class", "--out", room / "out"]
    began, (busy, total) = time.monotonic(), _ticks()
    grader = subprocess.Popen(
        [*command, "--phase", "1"], cwd=course.root, stdout=subprocess.DEVNULL
    )
    memory = 0.0
    while grader.poll() is None:
        memory = max(memory, _most_memory(grader.pid))
        time.sleep(0.5)
    if grader.returncode:
        raise SystemExit(f"The grader ended with status {grader.returncode}, expected 0.")
    took, (busy_then, total_then) = time.monotonic() - began, _ticks()
    return Run(len(members), took, (busy_then - busy) / (total_then - total), memory)


def _ticks() -> tuple[int, int]:
    """Return the busy time and the total time of all cores since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    # Fields 3 and 4 are idle time and time spent waiting for disks.
    return sum(fields) - fields[3] - fields[4], sum(fields)


def _most_memory(process: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:  # the process has ended
        return 0.0
    return int(found[1]) / 1024 if found else 0.0
