"""Trusted: the launcher for Linux, which forks ranks from one warm process."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradsync.ranks.crew import MAX_MESSAGE, Lines, lines_for, thread_limits

START_SECONDS = 120.0  # importing torch from a cold disk
END_SECONDS = 30.0


class LauncherError(Exception):
    """The launcher itself failed: no rank is to blame."""


class ForkLauncher:
    """Starts the warm process when it is first needed, and again should it be gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._lock = threading.Lock()  # one run at a time
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    @contextmanager
    def crew(self, world_size: int, directory: str) -> Iterator[ForkedCrew]:
        with self._lock, lines_for(world_size) as (ours, theirs):
            control = self._warm()
            crew = ForkedCrew(control, ours)
            try:
                for rank, lines in enumerate(theirs):
                    crew.start(rank, lines, directory)
                yield crew
            finally:
                if not crew.end():
                    self.close()

    def close(self) -> None:
        """End the warm process and all that it started."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._forget()

    def warm_up(self) -> None:
        """Begin to import torch now, in the background, for a run that comes later."""
        with self._lock:
            self._start()

    def _warm(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        control = self._start()
        if not self._ready:
            control.settimeout(START_SECONDS)
            if not control.recv(MAX_MESSAGE):
                self.close()
                raise LauncherError(
                    "the process that forks the ranks did not start: "
                    f"does `{sys.executable} -c 'import torch'` work?"
                )
            self._ready = True
        control.settimeout(END_SECONDS)
        return control

    def _start(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "gradsync.ranks.warm", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=thread_limits(),
                    start_new_session=True,  # Ctrl-C is for the trusted side, which then ends it
                )
            self._control = ours
        return self._control

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._process = self._control = None
        self._ready = False


class ForkedCrew:
    def __init__(self, control: socket.socket, lines: list[Lines]) -> None:
        self.lines = lines
        self._control = control
        self._exit_codes: dict[int, int] = {}

    def start(self, rank: int, lines: Lines, directory: str) -> None:
        message = {"do": "start", "rank": rank, "directory": directory}
        ends = lines.all()
        socket.send_fds(self._control, [json.dumps(message).encode()], [e.fileno() for e in ends])
        for end in ends:
            end.close()

    def exit_codes(self) -> dict[int, int]:
        self._control.setblocking(False)
        try:
            while data := self._control.recv(MAX_MESSAGE):
                self._take(json.loads(data))
        except BlockingIOError:
            pass
        finally:
            self._control.settimeout(END_SECONDS)
        return self._exit_codes

    def ask_stacks(self, rank: int) -> None:
        self._control.send(json.dumps({"do": "stacks", "rank": rank}).encode())

    def end(self) -> bool:
        """Have all ranks killed and reaped; False if the warm process is itself gone."""
        try:
            self._control.send(b'{"do": "end"}')
            while data := self._control.recv(MAX_MESSAGE):
                if self._take(json.loads(data)):
                    return True
        except OSError:
            return False
        return False

    def _take(self, message: dict[str, Any]) -> bool:
        if "rank" in message:
            self._exit_codes[message["rank"]] = message["exit_code"]
        return "ended" in message
