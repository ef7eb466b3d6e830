"""The warm process, in which `warm_program` has imported torch: forks the ranks of every run.

Trusted: a learner's code runs only in its children. It exchanges messages with `ForkLauncher` over
one socket, one JSON message per packet, and ends when the launcher ends. It is the subreaper of all
its descendants, so it inherits the processes that a rank leaves behind, and kills them after a run.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gradsync.ranks.fast import dynamo
from gradsync.ranks.fast.late_imports import LateImports
from gradsync.ranks.host.launchers import packets
from gradsync.ranks.host.processor_time import Helpers, ran, starved
from gradsync.ranks.sandbox import cgroups, namespaces
from gradsync.ranks.sandbox.cgroups import ControlGroup
from gradsync.ranks.sandbox.sandbox import Sandbox

CHECK_SECONDS = 0.05  # between two checks of the limits of ranks in a sandbox
PR_SET_CHILD_SUBREAPER = 36
# Runs a rank. Arguments: its channel, its stacks, and a function to call before it exits.
RunRank = Callable[[socket.socket, socket.socket, Callable[[], None]], NoReturn]


class WarmProcess:
    def __init__(
        self, control: socket.socket, run_rank: RunRank, group: ControlGroup | None = None
    ) -> None:
        """Answer messages from `control`; each fork that becomes a rank calls `run_rank`."""
        self._control = control
        self._run_rank = run_rank
        self._libc = ctypes.CDLL(None)
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._directory: str | None = None
        self._late = LateImports()
        self._sandbox: Sandbox | None = None
        self._helpers = Helpers()
        self._group = group
        self._siblings: set[int] = set()  # warm processes like this one, which end on their own
        self._independent_siblings: set[int] = set()  # siblings that may outlive this process
        self._looked = 0.0  # when the limits were last checked

    def serve(self) -> None:
        """Answer messages until the launcher closes its end, or is killed."""
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        deaths, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            with suppress(ConnectionError):
                self._send(ready=True)
                self._serve(deaths)
        finally:
            self._end_all()
            if self._directory:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._end_siblings()

    def _serve(self, deaths: int) -> None:
        while True:
            pause = CHECK_SECONDS if self._sandbox else None
            ready, _, _ = select.select([self._control.fileno(), deaths], [], [], pause)
            if self._sandbox and time.monotonic() - self._looked >= CHECK_SECONDS:
                self._look_at(self._sandbox)
            if deaths in ready:
                os.read(deaths, 512)
                self._reap()
            if self._control.fileno() in ready and not self._answer():
                return

    def _answer(self) -> bool:
        message = packets.receive(self._control)
        if message is None:
            return False
        answers: dict[str, Callable[..., None]] = {
            "join": self._join,
            "sibling": self._fork_sibling,
            "await_siblings": self._await_siblings,
            "import": self._import,
            "sandbox": self._make_sandbox,
            "start": self._start,
            "kill": self._kill,
            "look": self._look,
            "starved": self._starved,
            "ran": lambda: self._send(ran=[(r, ran(pid)[0]) for pid, r in self._ranks.items()]),
            "stacks": self._stacks,
            "end": self._end,
        }
        answer = answers[message.pop("do")]
        answer(**message)
        return True

    def _join(self, group: dict[str, str]) -> None:
        self._group = cgroups.joined(group)
        self._send(joined=self._group is not None)

    def _fork_sibling(self, fds: list[int], outlives: bool, group: dict[str, str] | None) -> None:
        """Fork a second warm process, which serves the other end of this socket."""
        [descriptor] = fds
        pid = os.fork()
        if pid == 0:
            try:
                self._control.close()
                own = (cgroups.joined(group) if group else None) or self._group
                WarmProcess(socket.socket(fileno=descriptor), self._run_rank, own).serve()
            finally:
                os._exit(0)
        (self._independent_siblings if outlives else self._siblings).add(pid)
        os.close(descriptor)

    def _await_siblings(self) -> None:
        self._end_siblings()
        self._send(ended=True)

    def _import(self, name: str) -> None:
        with suppress(ImportError):  # ranks then import it themselves, or fail to
            importlib.import_module(name)
            gc.freeze()

    def _make_sandbox(self, directory: str, readable: list[str]) -> None:
        self._sandbox = Sandbox(directory, readable, self._group)
        self._helpers = Helpers()

    def _start(self, rank: int, directory: str, fds: list[int]) -> None:
        self._directory = directory
        parent = os.getpid()
        pid = namespaces.fork()
        if pid == 0:
            self._become_rank(parent, fds)
        self._ranks[pid] = rank
        for fd in fds:
            os.close(fd)

    def _kill(self, rank: int) -> None:
        """End one rank, and the processes in its session; the other ranks continue."""
        for pid in [pid for pid, its_rank in self._ranks.items() if its_rank == rank]:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self._ranks[pid]
        self._send(killed=rank)

    def _look(self) -> None:
        if self._sandbox:
            self._look_at(self._sandbox)
        self._send(looked=True)

    def _starved(self) -> None:
        helpers = self._sandbox.members() - self._ranks.keys() if self._sandbox else ()
        self._helpers.look(helpers)
        self._send(starved=starved(self._ranks, helpers, self._helpers.ran()))

    def _stacks(self, rank: int) -> None:
        for pid, its_rank in self._ranks.items():
            if its_rank == rank:
                os.kill(pid, signal.SIGUSR1)

    def _end(self) -> None:
        self._end_all()
        if self._sandbox:
            self._sandbox.close()
        self._directory = self._sandbox = None
        self._send(ended=True)
        self._catch_up()

    def _become_rank(self, parent: int, fds: list[int]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            if self._sandbox:  # it ends with this process
                self._sandbox.enter()
            else:
                namespaces.end_with(parent)
            channel, output, stacks = fds
            for standard in (1, 2):
                os.dup2(output, standard)
            for entry in list(Path("/proc/self/fd").iterdir()):
                if int(entry.name) > 2 and int(entry.name) not in (channel, stacks):
                    with suppress(OSError):  # the descriptor of the listing itself
                        os.close(int(entry.name))
            channel_end, stacks_end = socket.socket(fileno=channel), socket.socket(fileno=stacks)
            self._run_rank(channel_end, stacks_end, self._late.report)
        except BaseException:  # noqa: BLE001 - after any error, a rank must not become a second server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _look_at(self, sandbox: Sandbox) -> None:
        """End the ranks if they exceed a limit."""
        self._looked = time.monotonic()
        states = sandbox.members()
        self._helpers.look(states - self._ranks.keys())
        had_enough = not sandbox.runs_low
        excess = sandbox.excess(states)
        if sandbox.runs_low and had_enough:  # soon the ranks may be killed
            for rank in list(self._ranks.values()):
                self._stacks(rank)
        if excess:
            self._send(excess=excess)
            sandbox.end()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._siblings.discard(pid)
            self._independent_siblings.discard(pid)
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._send(rank=rank, exit_code=os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        """Kill and reap all descendants: orphans become children of this process."""
        self._ranks.clear()
        while children := _children() - self._siblings - self._independent_siblings:
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _end_siblings(self) -> None:
        """Wait until the siblings have ended; their launchers have ended already."""
        while self._siblings:
            os.waitpid(self._siblings.pop(), 0)

    def _catch_up(self) -> None:
        """Import, for all later ranks, the modules that ranks of this run imported themselves."""
        if self._late.catch_up():
            dynamo.forget()
            gc.freeze()
        self._late = LateImports()  # ranks of the next run must not read reports of this run

    def _send(self, **message: Any) -> None:
        packets.send(self._control, **message)


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
