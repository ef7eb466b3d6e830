"""End the process of a command quickly."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress


class Ending:
    """Ends this process once all exit handlers have run, without deleting torch's modules.

    Python would delete them one by one, which takes a tenth of a second. Exit handlers run in the
    reverse order of their registration, so this object must be made before anything else.
    """

    def __init__(self) -> None:
        self.status: int | None = None  # None: Python ends the process, because of an error
        atexit.register(self._leave)

    def _leave(self) -> None:
        if self.status is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, BrokenPipeError):  # it is closed, or nobody reads it
                    stream.flush()
            os._exit(self.status)
