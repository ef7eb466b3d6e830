"""Untrusted side: coverage.py on a rank, if the environment asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable

# Set by coverage.py, or by hand, for the processes that a test starts.
ASKED = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


def start_coverage() -> Callable[[], None]:
    """Start to measure; return a function that saves the data: a rank ends with `os._exit`."""
    if not any(name in os.environ for name in ASKED):
        return lambda: None
    import coverage

    own = coverage.process_startup()

    def save() -> None:
        if own is not None:
            own.stop()
            own.save()

    return save
