"""The seccomp filter of a sandbox, run as the kernel would, and on a rank."""

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct

import pytest

from gradsync import run_ranks
from gradsync.ranks.sandbox.seccomp import (
    ALLOW,
    AND,
    ARCHITECTURE,
    ARGUMENTS,
    EQUAL,
    IGNORE,
    IGNORED,
    KILL,
    LOAD,
    MACHINES,
    NOT_BELOW,
    NUMBER,
    REFUSE,
    X32,
    program,
)

READ = {"x86_64": 0, "aarch64": 63}
PRIVATE, SHARED = mmap.MAP_PRIVATE, mmap.MAP_SHARED
NAMELESS = mmap.MAP_ANONYMOUS


def verdict(machine, number, *arguments, mark=None):
    """Return the filter's decision on a call."""
    known = {NUMBER: number, ARCHITECTURE: MACHINES[machine][0] if mark is None else mark}
    known |= {ARGUMENTS + 8 * i: value for i, value in enumerate(arguments)}
    word, at = 0, 0
    instructions = list(struct.iter_unpack("=HBBI", program(machine)))
    while True:
        does, if_so, if_not, constant = instructions[at]
        at += 1
        if does == LOAD:
            word = known.get(constant, 0)
        elif does == AND:
            word &= constant
        elif does in (EQUAL, NOT_BELOW):
            holds = word == constant if does == EQUAL else word >= constant
            at += if_so if holds else if_not
        else:
            return constant


@pytest.mark.parametrize("machine", MACHINES)
def test_unneeded_calls_are_refused(machine):
    calls = MACHINES[machine][1].items()

    refused = {name for name, number in calls if verdict(machine, number) == REFUSE}
    ignored = {name for name, number in calls if verdict(machine, number) == IGNORE}

    assert ignored == IGNORED
    # Some uses of these three are allowed. So are some sockets, but not a socket of family 0.
    assert refused | ignored == MACHINES[machine][1].keys() - {"fcntl", "mmap", "setsockopt"}


@pytest.mark.parametrize("machine", MACHINES)
def test_other_calls_are_allowed(machine):
    assert verdict(machine, READ[machine]) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("command", "answer"),
    [(fcntl.F_GETFD, ALLOW), (fcntl.F_SETLK, ALLOW), (fcntl.F_SETLEASE, REFUSE)],
)
def test_only_leases_of_fcntl_are_refused(machine, command, answer):
    assert verdict(machine, MACHINES[machine][1]["fcntl"], 3, command, 1) == answer


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        (PRIVATE | NAMELESS, ALLOW),
        (PRIVATE, ALLOW),
        (SHARED, ALLOW),
        (SHARED | NAMELESS, REFUSE),
        (SHARED | NAMELESS | mmap.MAP_DENYWRITE, REFUSE),
    ],
)
def test_shared_memory_without_a_file_is_refused(machine, flags, answer):
    mapped = verdict(machine, MACHINES[machine][1]["mmap"], 0, 4096, 3, flags)

    assert mapped == answer


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("family", "answer"),
    [(socket.AF_UNIX, ALLOW), (socket.AF_INET6, ALLOW), (socket.AF_PACKET, REFUSE), (40, REFUSE)],
)
def test_sockets_of_unknown_families_are_refused(machine, family, answer):
    assert verdict(machine, MACHINES[machine][1]["socket"], family) == answer


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("level", "option", "answer"),
    [
        (socket.SOL_SOCKET, socket.SO_SNDBUF, REFUSE),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, REFUSE),
        (socket.SOL_SOCKET, socket.SO_REUSEADDR, ALLOW),
        (socket.IPPROTO_TCP, socket.SO_SNDBUF, ALLOW),  # the number has another meaning for TCP
    ],
)
def test_changing_a_sockets_buffers_is_refused(machine, level, option, answer):
    assert verdict(machine, MACHINES[machine][1]["setsockopt"], 5, level, option) == answer


def test_calls_with_other_numbers_are_refused():
    assert verdict("x86_64", READ["x86_64"] | X32) == REFUSE
    assert verdict("x86_64", READ["x86_64"], mark=0x40000003) == KILL  # numbers of i386


def test_a_machine_with_unknown_calls_has_no_filter():
    assert list(struct.iter_unpack("=HBBI", program("riscv64"))) == [(0x06, 0, 0, ALLOW)]


def test_the_filter_applies_to_ranks_in_a_sandbox():
    def ask():
        try:
            os.close(os.memfd_create("x"))
        except OSError as error:
            refused = error.errno
        double = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda number: 2 * number)
        return refused, double(4)

    assert run_ranks(ask, 1, launcher="sandbox")[0] == (errno.EPERM, 8)
