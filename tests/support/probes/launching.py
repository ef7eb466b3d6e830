"""The addresses to which a rank has connected."""

from __future__ import annotations

import ipaddress
import struct
from pathlib import Path

ESTABLISHED = "01"


def connected_to(port: int) -> list[str]:
    """Return the addresses to which this process has connections at a port.

    The list is empty if the system does not show them.
    """
    own = {_target(entry) for entry in Path("/proc/self/fd").glob("*")}
    rows = [line.split() for table in ("tcp", "tcp6") for line in _lines(f"/proc/self/net/{table}")]
    found = set()
    for row in rows:
        address, _, remote = row[2].partition(":")
        if row[3] == ESTABLISHED and int(remote, 16) == port and f"socket:[{row[9]}]" in own:
            found.add(_address(address))
    return sorted(found)


def _address(digits: str) -> str:
    """Return an address from the system's table: words of 8 digits in the machine's byte order."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    return str(getattr(address, "ipv4_mapped", None) or address)


def _lines(table: str) -> list[str]:
    try:
        return Path(table).read_text().splitlines()[1:]
    except OSError:
        return []


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:  # it was closed in the meantime
        return ""
