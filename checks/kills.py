"""`make kills`: kill the grader of a class of 10 at 50 random moments, and restart it each time.

The grader grades two submissions at a time with part of phase 1's suite. It is killed (`kill -9`)
and started again until it finishes. Then the next class begins, until the number of kills is
reached. The results are the numbers of gradebooks that differ from the gradebook of an undisturbed
run, of finished grades that were made a second time, and of leftover processes and files. The
argument is the number of kills, by default 50.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from gradsync.course.catalogue import find_course
from gradsync.course.known_submissions import reference, untouched, wrong_submissions
from gradsync.submission import Submission

KILLS = 50
CLASS = 10
JOBS = "2"  # submissions at a time
SUITE = ("test_data_loader.py", "test_trainer.py")  # they take a few seconds per submission
EXERCISES = ("phase1/PaddedDistributedSampler", "phase1/average_gradients")  # with known mistakes
SEED = "1"
GONE_SECONDS = 30.0  # after the grader, all processes must end within this time


@dataclass
class Tally:
    """The results after some kills."""

    kills: int = 0
    classes: int = 0
    differing: int = 0  # gradebooks
    made_again: int = 0  # finished grades
    left: set[str] = field(default_factory=set)  # processes and files

    def summary(self) -> str:
        return (
            f"{self.kills} kills in {self.classes} classes of {CLASS}: {self.differing} gradebooks "
            f"differ, {self.made_again} finished grades were made a second time, {len(self.left)} "
            "processes or files were left behind"
        )


class Grader:
    """Runs `gradsync grade` on the class in `room`, with its own temporary folder."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.temporary = room / "tmp"
        self.temporary.mkdir()

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gradsync", "grade", self.room / "class", "--out", out]
        return subprocess.Popen(
            [*command, "--phase", "1", "--seed", SEED, "--jobs", JOBS],
            cwd=self.room / "course",
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdout=subprocess.DEVNULL,
        )

    def left(self, out: Path) -> list[str]:
        """Return processes and files left by a finished run and the killed runs before it."""
        until = time.monotonic() + GONE_SECONDS
        while self._processes() and time.monotonic() < until:
            time.sleep(0.1)
        files = [*self.temporary.iterdir(), *out.glob(".*.????????"), *out.glob("*/.*")]
        return [*self._processes(), *map(str, files)]

    def _processes(self) -> list[str]:
        mark = f"TMPDIR={self.temporary}\0".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes():
                    found.append(f"process {entry.name}")
            except OSError:  # the process has ended, or belongs to another user
                continue
        return found


def main(kills: int) -> int:
    """Kill and start graders, print the results, and return 1 if anything was wrong."""
    tally = Tally()
    moments = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        write_course_and_class(room)
        grader = Grader(room)
        began = time.monotonic()
        _finish(grader.start(room / "undisturbed"))
        seconds = time.monotonic() - began
        wanted = (room / "undisturbed" / "gradebook.csv").read_bytes()
        print(f"an undisturbed run takes {seconds:.1f} s", flush=True)
        while tally.kills < kills:
            out = room / f"out-{tally.classes}"
            _grade_with_kills(grader, out, kills, moments, seconds, tally)
            tally.classes += 1
            tally.differing += (out / "gradebook.csv").read_bytes() != wanted
            tally.left |= set(grader.left(out))
            print(tally.summary(), flush=True)
    print(*sorted(tally.left), sep="\n")
    return int(bool(tally.differing or tally.made_again or tally.left))


def _grade_with_kills(
    grader: Grader, out: Path, kills: int, moments: random.Random, seconds: float, tally: Tally
) -> None:
    """Grade a class; kill the grader until it finishes or the number of kills is reached."""
    while True:
        finished = _finished(out)
        process = grader.start(out)
        try:
            process.wait(moments.uniform(0, seconds) if tally.kills < kills else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            tally.kills += 1
        else:
            _finish(process)
        now = _finished(out)
        tally.made_again += sum(now.get(name) != known for name, known in finished.items())
        if process.returncode == 0:
            return


def _finish(process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise SystemExit(f"The grader ended with status {process.returncode}, expected 0.")


def _finished(out: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and the time of each report, which change when it is written again."""
    reports = {path.parent.name: path.stat() for path in out.glob("*/report.json")}
    return {name: (seen.st_ino, seen.st_mtime_ns) for name, seen in reports.items()}


def write_course_and_class(room: Path) -> None:
    """Write part of phase 1 as `room`/course, and submissions as `room`/class."""
    course = find_course(Path(__file__).parent)
    shutil.copytree(course.root / "phase1", room / "course" / "phase1")
    suite = room / "course" / "tests" / "hidden" / "phase1"
    suite.mkdir(parents=True)
    for name in SUITE:
        shutil.copy(course.suite("hidden", "phase1") / name, suite)
    shutil.copytree(course.support, suite.parents[1] / "support")
    mistakes = [w for w in wrong_submissions(course, "phase1") if w.exercise in EXERCISES]
    members = [reference(course), untouched(course), *(w.submission(course) for w in mistakes)]
    for member in members[:CLASS]:
        _write(member, room / "class" / member.name)


def _write(submission: Submission, folder: Path) -> None:
    for path, source in submission.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(source)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS))
