"""Select the output of ranks for a report: the last lines, with equal outputs merged."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradsync.records import Printed
from gradsync.reports.text import printable

MAX_LINES = 20  # of a rank: the last ones
MAX_LINE = 200  # characters
MAX_BLOCKS = 8  # ranks, or groups of ranks with the same output
NOISE = re.compile(r"\[Gloo\] Rank \d+ is connected to ")  # gloo prints this when it starts


def last_lines(texts: Sequence[str], folder: str = "") -> tuple[Printed, ...]:
    """Return the parts of the ranks' output to show.

    Args:
        texts: by rank, stdout and stderr in order.
        folder: the folder of the files under test, which differs each time; it is removed.
    """
    groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for rank, text in enumerate(texts):
        lines = _lines(text.replace(folder, "") if folder else text)
        if lines:
            shown = tuple(_cut(line) for line in lines[-MAX_LINES:])
            groups.setdefault((shown, len(lines) - len(shown)), []).append(rank)
    blocks = [Printed(tuple(ranks), *said) for said, ranks in groups.items()]
    return tuple(blocks[:MAX_BLOCKS])


def _lines(text: str) -> list[str]:
    lines = printable(text).splitlines()
    return [line.rstrip() for line in lines if line.strip() and not NOISE.match(line)]


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
