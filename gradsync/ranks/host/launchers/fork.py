"""Trusted: the launcher for Linux, which forks ranks from a warm process."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gradsync.ranks.host.launchers import packets
from gradsync.ranks.host.launchers.launcher import (
    START_SECONDS,
    LauncherError,
    Lines,
    command,
    lines_for,
    open_lines,
    rank_environ,
)
from gradsync.ranks.sandbox import cgroups, sandbox

END_SECONDS = 30.0  # for an answer of the warm process, and for its end
GONE = "the process that forks the ranks has ended, or does not answer: was it killed?"


class ForkLauncher:
    """Starts the warm process when it is first needed, and again if it has ended."""

    def __init__(self, *, sandboxed: bool = False, hash_seed: int | None = None) -> None:
        self._sandboxed = sandboxed
        self._hash_seed = hash_seed  # of strings on all ranks; None: random, or the environment's
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._group: cgroups.ControlGroup | None = None
        self._sibling_groups: list[cgroups.ControlGroup] = []  # each has its own limits
        self._ready = False
        self._lock = threading.Lock()  # one run at a time
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget_in_child)

    @contextmanager
    def started(
        self, world_size: int, directory: str, readable: Sequence[Path]
    ) -> Iterator[ForkedProcesses]:
        with self._lock, lines_for(world_size) as (ours, theirs):
            control = self._warm()
            processes = ForkedProcesses(control, ours, directory)
            try:
                if self._sandboxed:
                    processes.make_sandbox(readable)
                for rank, lines in enumerate(theirs):
                    processes.start(rank, lines)
                yield processes
            finally:
                self._finish(control, "end")  # all ranks are killed and reaped

    def close(self) -> None:
        """End the warm process and all processes that it started."""
        process, control = self._process, self._control
        groups = [*self._sibling_groups, *([self._group] if self._group else [])]
        self._sibling_groups.clear()
        self._process = self._control = self._group = None
        self._ready = False
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with bubblewrap's first process
                process.wait()
        for group in groups:
            group.close()

    def warm_up(self, also: Sequence[str] = ()) -> None:
        """Start to import torch in the background; see `Launcher`."""
        with self._lock:
            control = self._start()
            for name in also:
                with suppress(OSError):  # it may have ended
                    packets.send(control, do="import", name=name)

    def sibling(self, *, outlives: bool = False) -> socket.socket:
        """Fork a second warm process from the first, for another launcher to `adopt`.

        Args:
            outlives: do not wait for the second one when the first one ends.
        """
        with self._lock:
            control = self._warm()
            folders = None
            if self._group is not None and (group := _make_group()):
                self._sibling_groups.append(group)
                folders = group.folders()
            ours, theirs = packets.pair()
            try:
                with theirs, suppress(OSError):  # it may have ended
                    packets.send(
                        control, [theirs.fileno()], do="sibling", outlives=outlives, group=folders
                    )
                ours.settimeout(START_SECONDS)  # it may still be importing torch
                if not packets.receive(ours):
                    raise LauncherError(GONE)
                ours.settimeout(END_SECONDS)
            except BaseException:  # also Ctrl-C: the sibling ends with its socket
                ours.close()
                raise
            return ours

    def await_siblings(self) -> None:
        """Wait until the siblings have ended; each ends with the process that adopted it."""
        with self._lock:
            if self._control is not None:
                self._finish(self._control, "await_siblings")
            while self._sibling_groups:
                self._sibling_groups.pop().close()

    def adopt(self, sibling: socket.socket) -> None:
        """Use a warm process that another launcher forked for this one."""
        self._control, self._ready = sibling, True

    def _warm(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        control = self._start()
        if not self._ready:
            control.settimeout(START_SECONDS)
            if not packets.receive(control):
                self.close()
                raise LauncherError(
                    "the process that forks the ranks did not start: "
                    f"does `{sys.executable} -c 'import torch'` work?"
                )
            control.settimeout(END_SECONDS)  # from now on, for each answer
            self._ready = True
            if self._sandboxed:
                self._group = _limited_group(control)
        return control

    def _start(self) -> socket.socket:
        if self._control is None:
            ours, theirs = packets.pair()
            with theirs:
                warm = command("gradsync.ranks.warm_program", theirs.fileno())
                self._process = subprocess.Popen(
                    sandbox.outer(warm) if self._sandboxed else warm,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=self._environ(),
                    start_new_session=True,  # Ctrl-C goes to the trusted side, which then ends it
                )
            self._control = ours
        return self._control

    def _environ(self) -> dict[str, str]:
        """Return the warm process's environment, in which coverage.py does not measure it."""
        environ = rank_environ(bare=self._sandboxed)
        if self._hash_seed is not None:
            environ["PYTHONHASHSEED"] = str(self._hash_seed + 1)  # 0 would turn it off
        return {n: value for n, value in environ.items() if not n.startswith("COVERAGE_PROCESS")}

    def _finish(self, control: socket.socket, what: str) -> None:
        """Ask the warm process to end this run or its siblings, and wait until it has."""
        ended = False
        try:
            ended = _has_ended(control, what)
        finally:
            if not ended:  # it has ended, or Ctrl-C has interrupted the exchange
                self.close()

    def _forget_in_child(self) -> None:
        """Forget the parent's warm process after a fork: the child starts its own."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.returncode = 0  # not this process's child: nothing to wait for
        self._process = self._control = self._group = None
        self._sibling_groups = []
        self._ready = False
        self._lock = threading.Lock()


class ForkedProcesses:
    def __init__(self, control: socket.socket, lines: list[Lines], directory: str) -> None:
        self.lines = lines
        self._control = control
        self._directory = directory
        self._exit_codes: dict[int, int] = {}
        self._excess: tuple[str, str] | None = None

    def make_sandbox(self, readable: Sequence[Path]) -> None:
        folders = list(map(str, readable))
        self._send(do="sandbox", directory=self._directory, readable=folders)

    def start(self, rank: int, lines: Lines) -> None:
        descriptors = [end.fileno() for end in lines.all()]
        self._send(descriptors, do="start", rank=rank, directory=self._directory)
        lines.close()

    def replace(self, rank: int) -> None:
        self._send(do="kill", rank=rank)
        self._await("killed")
        self._exit_codes.pop(rank, None)
        self.lines[rank].close()
        self.lines[rank], theirs = open_lines()
        self.start(rank, theirs)

    def exit_codes(self) -> dict[int, int]:
        while message := packets.receive(self._control, wait=False):
            self._take(message)
        if message is None:
            raise LauncherError(GONE)
        return self._exit_codes

    def excess(self) -> tuple[str, str] | None:
        if self._excess is None:
            self._send(do="look")
            self._await("looked")
        return self._excess

    def starved(self) -> float:
        self._send(do="starved")
        return float(self._await("starved")["starved"])

    def ran(self) -> dict[int, float]:
        self._send(do="ran")
        return dict(self._await("ran")["ran"])

    def ask_stacks(self, rank: int) -> None:
        self._send(do="stacks", rank=rank)

    def _send(self, descriptors: Sequence[int] = (), **message: Any) -> None:
        try:
            packets.send(self._control, descriptors, **message)
        except OSError as error:
            raise LauncherError(f"the process that forks the ranks has ended ({error})") from error

    def _await(self, answer: str) -> dict[str, Any]:
        """Return the message with the key `answer`; record ranks that end before it arrives."""
        while message := packets.receive(self._control):
            if answer in message:
                return message
            self._take(message)
        raise LauncherError(GONE)

    def _take(self, message: dict[str, Any]) -> None:
        if "rank" in message:
            self._exit_codes[message["rank"]] = message["exit_code"]
        elif "excess" in message:
            code, text = message["excess"]
            self._excess = code, text


def _has_ended(control: socket.socket, what: str) -> bool:
    """Request the end and wait for it; return False if the warm process itself has ended."""
    try:
        packets.send(control, do=what)
    except OSError:
        return False
    while message := packets.receive(control):  # also messages on ranks that end meanwhile
        if "ended" in message:
            return True
    return False


def _limited_group(control: socket.socket) -> cgroups.ControlGroup | None:
    """Let the warm process join a control group, if one is available, before it forks ranks."""
    group = _make_group()
    if group is not None:
        packets.send(control, do="join", group=group.folders())
        if not (packets.receive(control) or {}).get("joined"):
            group.close()
            return None
    return group


def _make_group() -> cgroups.ControlGroup | None:
    return cgroups.make(sandbox.RUN_MEMORY, sandbox.TASKS + sandbox.OWN_TASKS)
