"""Kill workers of a Dask cluster that grades a class, at 10 random moments.

Each time, one of two workers is killed (`kill -9`), together with the process that grades for it.
Then a new worker is started. The results are the number of gradebooks that differ from the
gradebook of an undisturbed run on one machine, and the number of graders that failed. The argument
is the number of kills, by default 10.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checks.kills import SEED, write_course_and_class

KILLS = 10
WORKERS = 2
LEAST, MOST = 5.0, 30.0  # seconds between two kills; a submission takes some seconds


class Cluster:
    """A scheduler and workers on this machine, as separate programs."""

    def __init__(self, room: Path) -> None:
        self.contact = room / "scheduler.json"
        self._room = room
        self._scheduler = self._start("scheduler", "--port", "0")
        while not self.contact.exists():
            time.sleep(0.1)
        self._workers = [self._worker() for _ in range(WORKERS)]

    def kill_one(self, which: int) -> None:
        """Kill a worker and start another one."""
        self._workers[which].kill()
        self._workers[which].wait()
        self._workers[which] = self._worker()

    def close(self) -> None:
        for program in (*self._workers, self._scheduler):
            program.kill()
            program.wait()

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", "--nthreads", "1", "--no-nanny")

    def _start(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        common = ["--no-dashboard", "--scheduler-file", str(self.contact)]
        return subprocess.Popen(
            [sys.executable, "-m", "dask", command, *common, *options],
            cwd=self._room,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def main(kills: int) -> int:
    """Grade classes while workers are killed; return 1 if a gradebook differs or a grader fails."""
    moments = random.Random(SEED)
    done = classes = differing = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        write_course_and_class(room)
        _grade(room, "undisturbed").wait()
        wanted = (room / "undisturbed" / "gradebook.csv").read_bytes()
        cluster = Cluster(room)
        try:
            while done < kills:
                out = f"out-{classes}"
                grader = _grade(room, out, "--cluster", str(cluster.contact))
                while _is_running(grader, moments.uniform(LEAST, MOST)) and done < kills:
                    cluster.kill_one(moments.randrange(WORKERS))
                    done += 1
                failed += grader.wait() != 0
                classes += 1
                differing += (room / out / "gradebook.csv").read_bytes() != wanted
                print(
                    f"{done} kills in {classes} classes: {differing} gradebooks differ, "
                    f"{failed} graders failed",
                    flush=True,
                )
        finally:
            cluster.close()
    return int(bool(differing or failed))


def _grade(room: Path, out: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gradsync", "grade", str(room / "class"), "--phase", "1"]
    return subprocess.Popen(
        [*command, "--out", str(room / out), "--seed", SEED, *options],
        cwd=room / "course",
        stdout=subprocess.DEVNULL,
    )


def _is_running(program: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        program.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else KILLS))
