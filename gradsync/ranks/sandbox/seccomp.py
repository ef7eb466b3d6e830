"""A seccomp filter that refuses system calls which a rank in a sandbox does not need.

Some of these calls allocate memory that belongs to no process and so can't be counted: files
without a name, System V segments and queues, unmapped shared memory, sockets with buffers of
megabytes. Some access other processes, or use up what the kernel grants to a user's processes
together. A file lease blocks anyone who opens the file, even outside the sandbox. The others are
complex and have had vulnerabilities, and no training uses them.

Sources: seccomp(2), bpf(2), fcntl(2), linux/filter.h, linux/seccomp.h, asm/unistd.h.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import platform
import socket
import struct
from mmap import MAP_ANONYMOUS, MAP_SHARED

LOAD, AND, RETURN = 0x20, 0x54, 0x06  # operations on a word of the call, and a constant
EQUAL, NOT_BELOW = 0x15, 0x35  # each has two jumps: if it is true, and if it is false
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
IGNORE = 0x00050000  # does nothing, and the call succeeds
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in the data of a call
X32 = 0x40000000  # a second set of call numbers on x86_64
# Time without a core does not count towards time limits, so a rank must not be able to cause it.
IGNORED = {
    *("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "setpriority")
}
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

# Machine -> the kernel's id of its architecture, and its call numbers.
MACHINES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "mmap": 9,
            "shmget": 29,
            "socket": 41,
            "setsockopt": 54,
            "semget": 64,
            "msgget": 68,
            "fcntl": 72,
            "ptrace": 101,
            "setpriority": 141,
            "sched_setparam": 142,
            "sched_setscheduler": 144,
            "sched_setaffinity": 203,
            "mq_open": 240,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "inotify_init": 253,
            "inotify_init1": 294,
            "perf_event_open": 298,
            "fanotify_init": 300,
            "open_by_handle_at": 304,
            "process_vm_readv": 310,
            "process_vm_writev": 311,
            "sched_setattr": 314,
            "memfd_create": 319,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
            "pidfd_getfd": 438,
            "memfd_secret": 447,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "fcntl": 25,
            "inotify_init1": 26,
            "mmap": 222,
            "shmget": 194,
            "socket": 198,
            "setsockopt": 208,
            "semget": 190,
            "msgget": 186,
            "ptrace": 117,
            "sched_setparam": 118,
            "sched_setscheduler": 119,
            "sched_setaffinity": 122,
            "setpriority": 140,
            "mq_open": 180,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "fanotify_init": 262,
            "open_by_handle_at": 265,
            "process_vm_readv": 270,
            "process_vm_writev": 271,
            "sched_setattr": 274,
            "memfd_create": 279,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
            "pidfd_getfd": 438,
            "memfd_secret": 447,
        },
    ),
}


@functools.cache  # the same for every sandbox
def program(machine: str | None = None) -> bytes:
    """Return the filter for the kernel; on a machine that is not listed, it allows all calls."""
    mark, calls = MACHINES.get(machine or platform.machine(), (0, {}))
    return b"".join(struct.pack("=HBBI", *line) for line in _lines(mark, calls))


def _lines(mark: int, calls: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """Return instructions: operation, lines to skip if true and if false, constant."""
    if not calls:
        return [(RETURN, 0, 0, ALLOW)]
    shared = MAP_SHARED | MAP_ANONYMOUS
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, mark), (RETURN, 0, 0, KILL)]
    lines += [(LOAD, 0, 0, NUMBER), (NOT_BELOW, 0, 1, X32), (RETURN, 0, 0, REFUSE)]
    for name, number in calls.items():
        if name not in ("fcntl", "mmap", "setsockopt", "socket"):
            lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, IGNORE if name in IGNORED else REFUSE)]
    lines += [(EQUAL, 0, 4, calls["fcntl"]), (LOAD, 0, 0, ARGUMENTS + 8)]
    lines += [(EQUAL, 0, 1, fcntl.F_SETLEASE), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, 5, calls["mmap"]), (LOAD, 0, 0, ARGUMENTS + 3 * 8), (AND, 0, 0, shared)]
    lines += [(EQUAL, 0, 1, shared), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, 7, calls["setsockopt"]), (LOAD, 0, 0, ARGUMENTS + 8)]
    lines += [(EQUAL, 0, 4, socket.SOL_SOCKET), (LOAD, 0, 0, ARGUMENTS + 2 * 8)]
    lines += [(EQUAL, 1, 0, socket.SO_SNDBUF), (EQUAL, 0, 1, socket.SO_RCVBUF)]
    lines += [(RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 1, 0, calls["socket"]), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, ARGUMENTS)]
    for family in FAMILIES:
        lines += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    return [*lines, (RETURN, 0, 0, REFUSE)]
