"""What a submission prints while it trains."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Keep what is printed meanwhile; the list has its lines afterwards, without blank ones.

    Stdout is a file as it mostly is, with a descriptor and a buffer of bytes.
    """
    lines: list[str] = []
    with tempfile.TemporaryFile("a+", encoding="utf-8", errors="replace") as file:
        try:
            with contextlib.redirect_stdout(file):
                yield lines
        finally:
            file.seek(0)
            lines += [line for line in file.read().splitlines() if line.strip()]
