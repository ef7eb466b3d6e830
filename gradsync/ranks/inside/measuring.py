"""Untrusted side: coverage.py on a rank, if the environment asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Set by coverage.py, or by hand, for the processes that a test starts.
ASKED = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


@contextmanager
def measured() -> Iterator[None]:
    """Measure the block's coverage; save it at once, because a rank ends with `os._exit`."""
    if not any(name in os.environ for name in ASKED):
        yield
        return
    import coverage

    own = coverage.process_startup()
    try:
        yield
    finally:
        if own is not None:
            own.stop()
            own.save()
