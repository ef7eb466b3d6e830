"""System calls for a sandbox that Python lacks, or lacks before 3.12.

As a program, with a command as its arguments, it mounts a /proc of its own and runs the command.

Sources: setns(2), pidfd_open(2), mount(2), tmpfs(5), prctl(2), capget(2), capabilities(7),
seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NOSUID, NODEV, NOEXEC, REMOUNT = 2, 4, 8, 32  # flags of mount
SET_DUMPABLE, SET_SECCOMP, DROP_FROM_BOUNDING_SET, NO_NEW_PRIVS = 4, 22, 24, 38  # options of prctl
SET_PARENT_DEATH_SIGNAL = 1
SECCOMP_FILTER = 2
CAPABILITIES_VERSION = 0x20080522
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
FORK_SECONDS, FORK_PAUSE = 10.0, 0.05

_libc = ctypes.CDLL(None, use_errno=True)


def end_with(parent: int) -> None:
    """Ask the kernel to end this process, a fork of `parent`, when `parent` ends."""
    _call("prctl", SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def mount_proc() -> None:
    """Mount a /proc that shows the processes of this namespace only."""
    _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(NOSUID | NODEV | NOEXEC), None)


def limit_files(tmpfs: str, count: int) -> None:
    """Limit the number of files and folders in a tmpfs; each takes kernel memory."""
    flags = ctypes.c_ulong(REMOUNT | NOSUID | NODEV)
    _call("mount", b"none", tmpfs.encode(), None, flags, f"nr_inodes={count}".encode())


def enter(process: int, kinds: int) -> None:
    """Enter namespaces of the process of a pidfd; a pid namespace applies to new children."""
    _call("setns", process, kinds)


def drop_privileges() -> None:
    """Drop all capabilities permanently, including those of set-user-id programs."""
    for capability in range(int(LAST_CAPABILITY.read_text()) + 1):
        _call("prctl", DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
    _call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())  # effective, permitted, inheritable, twice
    # Other ranks can't read its memory or take its sockets.
    _call("prctl", SET_DUMPABLE, 0, 0, 0, 0)


def refuse_calls(program: bytes) -> None:
    """Install a seccomp filter for this thread; each instruction has 8 bytes."""
    instructions = ctypes.create_string_buffer(program, len(program))
    _call("prctl", SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(_Filter(instructions)), 0, 0)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    def __init__(self, instructions: ctypes.Array[ctypes.c_char]) -> None:
        super().__init__(len(instructions) // 8, ctypes.addressof(instructions))


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def fork() -> int:
    """Fork; if memory is short, wait until the kernel has freed the memory of earlier ranks.

    Raises:
        OSError: memory is still short after `FORK_SECONDS`.
    """
    until = time.monotonic() + FORK_SECONDS
    while True:
        try:
            return os.fork()
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(FORK_PAUSE)


if __name__ == "__main__":
    try:
        mount_proc()
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(error.strerror)
