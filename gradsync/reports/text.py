"""Make untrusted text safe to store and to show, and format numbers.

Messages, labels and names of submissions come from learners' programs. The libraries that write
HTML, SVG, JSON and CSV escape them; this module handles characters that escaping does not make
safe.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from textwrap import dedent

_UNCARRIABLE = re.compile("[\x00\ud800-\udfff]")
_ANSI = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
# Control characters could control a terminal, bidirectional overrides reorder a line, and XML (so
# SVG) does not allow U+FFFE.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def carriable(text: str) -> str:
    """Return `text` without lone surrogates and NUL, for a UTF-8 file."""
    return _UNCARRIABLE.sub("\ufffd", text)


def printable(text: str) -> str:
    """Return `text` without escape sequences and control characters other than tab and newline."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub("\ufffd", text)


def finite(number: float) -> float:
    """Return `number` with two decimals; a NaN or an infinity becomes 0."""
    return round(number, 2) + 0.0 if math.isfinite(number) else 0.0


def amount(number: float) -> str:
    """Return points or seconds without trailing zeros: "5", "2.5", "0.33"."""
    return f"{finite(number):.2f}".rstrip("0").rstrip(".")


def round_step(least: float) -> float:
    """Return the first of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that is not less than `least`."""
    unit = 10.0 ** math.floor(math.log10(least))
    return next(factor * unit for factor in (1, 2, 5, 10) if factor * unit > least * (1 - 1e-9))


def duration(seconds: float) -> str:
    """Return "12.5 s", "3 min 20 s" or "1 h 5 min"."""
    if seconds < 60:
        return f"{amount(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def slug(heading: str) -> str:
    """Return the anchor of a heading in Markdown, as in GitHub and most editors."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of a message: prose to wrap, or indented lines to keep unchanged."""

    is_code: bool
    text: str


def blocks(message: str) -> list[Block]:
    """Split `message` at blank lines, and between prose and indented lines."""
    lines = [line.expandtabs(4).rstrip() for line in printable(message).split("\n")]
    runs = groupby(lines, key=lambda line: line[:1].isspace() if line else None)
    return [Block(is_code, dedent("\n".join(run))) for is_code, run in runs if is_code is not None]


def csv_text(rows: Iterable[Sequence[object]], delimiter: str = ",") -> str:
    """Return rows as CSV, with quotes where needed; None is an empty cell."""
    text = StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()
