"""Move this process's memory to huge pages, which makes a fork a third cheaper."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

MADV_COLLAPSE = 25  # since Linux 6.1
HUGE_PAGE = 2**21  # bytes


def collapse() -> None:
    """Move private memory to huge pages; most of it belongs to Python's allocator."""
    libc = ctypes.CDLL(None)
    for start, end in _private_memory():
        first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        if first < last:  # older kernels refuse this, which does no harm
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _private_memory() -> Iterator[tuple[int, int]]:
    """Yield the address ranges of this process's private data, without mapped files."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, _, _, _, *name = line.split()
        if access == "rw-p" and name in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield start, end
