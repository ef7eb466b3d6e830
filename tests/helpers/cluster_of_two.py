"""A Dask cluster of two workers, of which one can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Cluster:
    """A scheduler and two workers with one thread each, as separate programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        contact = folder / "scheduler.json"
        self._programs = [self._start("scheduler", "--port", "0", "--scheduler-file", contact)]
        for name in ("one", "two"):
            options = ["--scheduler-file", contact, "--nthreads", "1", "--no-nanny"]
            self._programs.append(self._start("worker", *options, "--name", name))
        self.contact = contact

    def _start(self, command: str, *options: object) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "dask", command, "--no-dashboard", *map(str, options)]
        return subprocess.Popen(
            arguments, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill_a_worker(self) -> None:
        self._programs[-1].send_signal(signal.SIGKILL)

    def close(self) -> None:
        for program in self._programs[::-1]:
            program.kill()
            program.wait()


@contextmanager
def cluster_of_two() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()
