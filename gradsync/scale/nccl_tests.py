"""Read the output of `all_reduce_perf` from NVIDIA's nccl-tests."""

from __future__ import annotations

import re

from gradsync.errors import UnusableInput
from gradsync.scale.samples import Sample

RANK = re.compile(r"^#\s+Rank\s+\d+", re.MULTILINE)
TIME = 5  # the column of the time in us of an out-of-place all-reduce
COLUMNS = 8  # size, count, type, redop, root, time, algbw, busbw; then #wrong and in-place


def read_nccl_tests(text: str) -> list[Sample]:
    """Return the all-reduces in the output of `all_reduce_perf`.

    Raises:
        UnusableInput: it has no list of ranks, or no measurements.
    """
    ranks = len(RANK.findall(text))
    samples = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= COLUMNS and fields[0].isdecimal() and int(fields[0]):
            samples.append(Sample(ranks, int(fields[0]), float(fields[TIME]) * 1e-6))
    if ranks < 2 or not samples:
        raise UnusableInput(
            "This is not the output of nccl-tests on several ranks: it needs the lines '#  Rank  0 "
            "...' and the table. Run, for example: all_reduce_perf -b 1K -e 64M -f 4 -g 2"
        )
    return samples
