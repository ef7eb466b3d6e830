"""Untrusted text made safe to carry and to show, and numbers short enough to read.

Messages, labels and names of submissions come from learners' programs. Escaping for HTML, SVG,
JSON and CSV is left to the libraries that write them; here is what no escaping repairs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import groupby
from textwrap import dedent

_UNCARRIABLE = re.compile("[\x00\ud800-\udfff]")
_ANSI = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")
# Controls could drive the terminal that shows them, bidirectional overrides turn a line around,
# and XML, which an SVG is, knows no U+FFFE.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def carriable(text: str) -> str:
    """`text` as a UTF-8 file can hold it: all of it but lone surrogates and NUL."""
    return _UNCARRIABLE.sub("\ufffd", text)


def printable(text: str) -> str:
    """`text` as it may be shown: no escape sequences, no control characters but tab and newline."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub("\ufffd", text)


def finite(number: float) -> float:
    """Return `number` with two decimals; a NaN or an infinity becomes 0."""
    return round(number, 2) + 0.0 if math.isfinite(number) else 0.0


def amount(number: float) -> str:
    """Points or seconds without idle zeros: "5", "2.5", "0.33"."""
    return f"{finite(number):.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of a message: prose to wrap, or lines that stood indented, to keep as they are."""

    is_code: bool
    text: str


def blocks(message: str) -> list[Block]:
    """`message` cut at blank lines, and where it changes between prose and indented lines."""
    lines = [line.expandtabs(4).rstrip() for line in printable(message).split("\n")]
    runs = groupby(lines, key=lambda line: line[:1].isspace() if line else None)
    return [Block(is_code, dedent("\n".join(run))) for is_code, run in runs if is_code is not None]
