"""The kernel's calls that a sandbox is made of, which Python itself has not, or not before 3.12.

Sources: setns(2), pidfd_open(2), mount(2), prctl(2), capget(2), capabilities(7).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_MOUNTS, NEW_CGROUP, NEW_UTS, NEW_IPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NOSUID, NODEV, NOEXEC = 2, 4, 8  # of a mount
SET_DUMPABLE, DROP_FROM_BOUNDING_SET, NO_NEW_PRIVS = 4, 24, 38  # of prctl
CAPABILITIES_VERSION = 0x20080522
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")

_libc = ctypes.CDLL(None, use_errno=True)


def mount_proc() -> None:
    """Show in /proc the processes of this namespace, and no others."""
    _call("mount", b"proc", b"/proc", b"proc", ctypes.c_ulong(NOSUID | NODEV | NOEXEC), None)


def enter(process: int, kinds: int) -> None:
    """Enter namespaces of the process behind a pidfd; that of pids is for children to come."""
    _call("setns", process, kinds)


def drop_privileges() -> None:
    """Give up every capability for good, and whatever a set-user-id program would give."""
    for capability in range(int(LAST_CAPABILITY.read_text()) + 1):
        _call("prctl", DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
    _call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())  # effective, permitted, inheritable, twice
    _call("prctl", SET_DUMPABLE, 1, 0, 0, 0)  # or its own /proc/self would be closed to it


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
