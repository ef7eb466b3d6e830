"""Find processes in /proc, for tests that wait until they have ended."""

import sys
import time
from pathlib import Path

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants_of(pid):
    for child in children_of(pid):
        yield child
        yield from descendants_of(child)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(is_so, seconds=60.0):
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return is_so()
