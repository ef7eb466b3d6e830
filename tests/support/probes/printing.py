"""Capture the output of a submission during training."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Capture the output; afterwards the list has its lines, without blank ones.

    Stdout is a file with a descriptor and a buffer of bytes, as in any process.
    """
    lines: list[str] = []
    with tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") as file:
        try:
            with contextlib.redirect_stdout(file):
                yield lines
        finally:
            file.seek(0)
            lines += [line for line in file.read().splitlines() if line.strip()]
