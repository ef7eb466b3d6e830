"""Read the output of `all_reduce_perf` from nccl-tests.

A row has the size in bytes, the number of elements, their type, the operation, in newer versions
the root, and then time (us), algbw, busbw (GB/s) and errors, out of place and in place. Above the
rows, the output has a line for each rank. `mpirun --tag-output` prints `[1,0]<stdout>:` before each
line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradsync.errors import UnusableInput
from gradsync.scale.fitting import Timing

RANK = re.compile(r"#\s+Rank\s+(\d+)\s")
TAG = re.compile(r"^\[\d+,\d+\]<\w+>:")
WITHOUT_ROOT = 12  # columns of a row


def read_nccl_tests(paths: Sequence[Path]) -> list[Timing]:
    """Return the all-reduces in files of nccl-tests' output; each file has one number of ranks.

    Raises:
        UnusableInput: a file can't be read, or is not the output of an all-reduce on some ranks.
    """
    found: list[Timing] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:
            raise UnusableInput(f"{path} can't be read: {problem.strerror}.") from None
        found += parse(text, str(path))
    return found


def parse(text: str, name: str) -> list[Timing]:
    """Return the all-reduces in the output of one run; `name` is for messages.

    Raises:
        UnusableInput: it is not the output of an all-reduce on at least two ranks.
    """
    lines = [TAG.sub("", line).strip() for line in text.splitlines()]
    rows = [row for row in (line.split() for line in lines) if _is_row(row)]
    if not rows:
        raise UnusableInput(
            f"{name} has no rows of nccl-tests. Save the output of all_reduce_perf to a file, and "
            "pass this file."
        )
    if any(row[3] == "none" for row in rows):
        raise UnusableInput(
            f"{name} is not the output of an all-reduce: its rows have no reduction. Use "
            "all_reduce_perf, not another program of nccl-tests."
        )
    ranks = _ranks(lines)
    if ranks < 2:
        raise UnusableInput(
            f"{name} does not show at least 2 ranks: there are no lines such as "
            "“#  Rank  1 ...” above the rows. Save all lines that all_reduce_perf prints. To use "
            "several nodes, build it with MPI=1."
        )
    timings = [_timing(row, ranks) for row in rows if int(row[0]) > 0]
    if len({timing.size for timing in timings}) < 2:
        raise UnusableInput(
            f"{name} has fewer than 2 sizes, but a fit of latency and bandwidth needs several. "
            "Run: all_reduce_perf -b 1K -e 1G -f 4"
        )
    return timings


def _is_row(words: list[str]) -> bool:
    return len(words) >= WITHOUT_ROOT and words[0].isdigit() and words[1].isdigit()


def _ranks(lines: Sequence[str]) -> int:
    found = [int(match[1]) for match in map(RANK.match, lines) if match]
    return max(found, default=-1) + 1


def _timing(row: list[str], ranks: int) -> Timing:
    """Return the out-of-place time of a row, which may have no column for the root."""
    microseconds = row[4] if len(row) == WITHOUT_ROOT else row[5]
    return Timing(ranks, int(row[0]), float(microseconds) / 1e6)
