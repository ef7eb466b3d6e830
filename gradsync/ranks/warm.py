"""The warm process: imports torch once, runs nothing, and forks the ranks of every run.

Trusted: it never runs a line of a learner's, only its children do. It talks with `ForkLauncher`
over one socket, a JSON message a packet, and ends with it. As the subreaper of all it started it
inherits what a rank leaves behind, daemons too, and ends that with the run.
"""

from __future__ import annotations

import gc

gc.disable()  # until all is imported: none of it is garbage, and to look for some takes long

import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import socket
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from gradsync.ranks import worker
from gradsync.ranks.crew import MAX_MESSAGE
from gradsync.ranks.patience import starved

# What ranks use is imported here, so that every fork has it at once.
WANTED_SOON = (
    "cloudpickle",
    "torch._dynamo",  # the first optimizer step imports it, for over a second
    "torch.optim",
    "torch.profiler._cupti_monitor",
    "torch.utils.data",
)
CACHE = "TORCHINDUCTOR_CACHE_DIR"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def start(descriptor: int) -> NoReturn:
    """Serve the launcher at the other end of this socket for as long as it is there."""
    _import_what_ranks_use()
    gc.enable()
    gc.collect()
    gc.freeze()  # the pages of all that is imported stay shared with every rank
    WarmProcess(socket.socket(fileno=descriptor)).serve()
    os._exit(0)


class WarmProcess:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = ctypes.CDLL(None)
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._directory: str | None = None

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

    def _serve(self, deaths: int) -> None:
        while True:
            ready, _, _ = select.select([self._control.fileno(), deaths], [], [])
            if deaths in ready:
                os.read(deaths, 512)
                self._reap()
            if self._control.fileno() in ready and not self._answer():
                return

    def _answer(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 3)
        if not data:
            return False
        message = json.loads(data)
        if message["do"] == "start":
            self._directory = message["directory"]
            self._start(message["rank"], fds)
        elif message["do"] == "starved":
            self._send(starved=max(map(starved, self._ranks), default=0.0))
        elif message["do"] == "stacks":
            for pid, rank in self._ranks.items():
                if rank == message["rank"]:
                    os.kill(pid, signal.SIGUSR1)
        elif message["do"] == "end":
            self._end_all()
            self._directory = None
            self._send(ended=True)
        return True

    def _start(self, rank: int, fds: list[int]) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(parent, fds)
        self._ranks[pid] = rank
        for fd in fds:
            os.close(fd)

    def _become_rank(self, parent: int, fds: list[int]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before it could be watched
                os._exit(1)
            channel, output, stacks = fds
            for standard in (1, 2):
                os.dup2(output, standard)
            for entry in list(Path("/proc/self/fd").iterdir()):
                if int(entry.name) > 2 and int(entry.name) not in (channel, stacks):
                    with suppress(OSError):  # the listing's own descriptor
                        os.close(int(entry.name))
            worker.main(socket.socket(fileno=channel), socket.socket(fileno=stacks))
        except BaseException:  # noqa: BLE001 - whatever it is, a rank must not become a second server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._send(rank=rank, exit_code=os.waitstatus_to_exitcode(status))

    def _end_all(self) -> None:
        """Kill and reap every descendant: whatever loses its parent becomes a child of ours."""
        self._ranks.clear()
        while children := _children():
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _send(self, **message: Any) -> None:
        self._control.send(json.dumps(message).encode())


def _import_what_ranks_use() -> None:
    # torch._dynamo makes the folder of its cache when it is imported: in the user's /tmp, if let.
    former = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory(prefix="gradsync-") as folder:
        os.environ[CACHE] = folder
        for name in WANTED_SOON:
            with suppress(ImportError):  # another torch has other private parts
                importlib.import_module(name)
    os.environ.pop(CACHE)
    if former is not None:
        os.environ[CACHE] = former


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
