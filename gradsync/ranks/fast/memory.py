"""Settings of the memory of the warm process and its ranks, which make forks and steps cheaper."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gradsync.ranks.fast import uses

# A heap in huge pages saves a third of the time to start and end a rank. All threads share a heap:
# gloo starts two threads in each rank, and separate heaps would begin with a huge page each.
MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
MADV_COLLAPSE = 25  # since Linux 6.1
HUGE_PAGE = 2**21  # bytes


def tunables() -> dict[str, str]:
    """Return the environment variables with which the warm process must start."""
    return {"GLIBC_TUNABLES": MALLOC} if uses("memory") else {}


def keep() -> None:
    """Make glibc reuse the memory of large tensors instead of mapping it in each training step."""
    if not uses("memory"):
        return
    with suppress(AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, 2**30)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest value allowed


def collapse() -> None:
    """Move private memory to huge pages; most of it belongs to Python's allocator."""
    if not uses("memory"):
        return
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
