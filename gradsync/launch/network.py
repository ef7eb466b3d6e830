"""This machine's network interfaces, the route to another machine, and the processes on ports."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
LISTENING = "0A"  # a state in /proc/net/tcp
ANY_PORT = 9  # the number does not matter: connecting a UDP socket sends no packet


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens on a port."""

    pid: int
    command: str


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def address_of(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        OSError: the name can't be resolved.
    """
    return socket.gethostbyname(host)


def route_to(address: str) -> str:
    """Return the address of this machine from which packets to `address` are sent.

    Raises:
        OSError: there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, ANY_PORT))
        return str(probe.getsockname()[0])


def is_this_machine(address: str) -> bool:
    """Return whether an IPv4 address belongs to this machine."""
    return address.startswith("127.") or address in interfaces().values()


def interface_with(address: str) -> str | None:
    """Return the name of the interface that has this address."""
    return next((name for name, own in interfaces().items() if own == address), None)


def gloo_address() -> tuple[str, bool]:
    """Return the address on which gloo listens if no interface is named.

    gloo resolves the host's name and uses the address if it belongs to this machine, or else
    127.0.0.1. The second value is True if the address of the name can be used.
    """
    try:
        address = address_of(socket.gethostname())
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError:
        return "127.0.0.1", False
    return address, True


def is_taken(port: int) -> bool:
    """Return whether a process of this machine listens on a TCP port."""
    return any(True for _ in _listening_inodes(port))


def holder_of(port: int) -> Holder | None:
    """Return the process that listens on a port; None if there is none or it is not visible."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                return Holder(int(process.name), " ".join(words).strip())
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
