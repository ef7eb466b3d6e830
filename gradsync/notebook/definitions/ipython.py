"""Remove lines in IPython's syntax from a cell."""

from __future__ import annotations

import re

CELL_MAGIC = "%%"
# The tokens that determine where a statement ends: strings, comments, brackets, line breaks.
TOKEN = re.compile(
    r"""
    '''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:'''|\Z)
    | \"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:\"""|\Z)
    | '(?:[^'\\\n]|\\.)*'? | "(?:[^"\\\n]|\\.)*"?
    | \#[^\n]* | \\\n | [()\[\]{}\n]
    """,
    re.VERBOSE | re.DOTALL,
)
# `%time f()`, `!ls \` with its further lines, `?f`; `x = %sql ...`; `f??`.
MAGIC = re.compile(
    r"""
    (?P<indent>[ \t]*)
    (?: (?P<target>\w+[ \t]*=)[ \t]*[%!](?!=) (?:[^\n]*\\\n)*[^\n]*
      | [%!?] (?:[^\n]*\\\n)*[^\n]*
      | [\w.*]+\?\??[ \t]*(?=\n|\Z)
    )
    """,
    re.VERBOSE,
)


def is_cell_magic(source: str) -> bool:
    """Check whether a cell begins with `%%`, so that it may not be Python."""
    return source.lstrip().startswith(CELL_MAGIC)


def without_magics(source: str) -> str:
    """Return a cell's source with `pass` in place of each line in IPython's syntax.

    If such a line assigns to a name, the name becomes None. The number of lines stays the same, and
    strings, brackets and comments are unchanged.
    """
    parts: list[str] = []
    at = 0
    while at < len(source):
        magic = MAGIC.match(source, at)
        end = magic.end() if magic else _end_of_statement(source, at)
        parts.append(_blanked(magic) if magic else source[at:end])
        at = end
        if magic and at < len(source):
            parts.append("\n")
            at += 1
    return "".join(parts)


def magic_lines(source: str) -> dict[int, str]:
    """Return the lines in IPython's syntax, by their numbers from 1."""
    lines = zip(source.split("\n"), without_magics(source).split("\n"), strict=True)
    return {n: line for n, (line, plain) in enumerate(lines, 1) if line != plain}


def _end_of_statement(source: str, start: int) -> int:
    """Return the position after the line break that ends a statement."""
    depth = 0
    for token in TOKEN.finditer(source, start):
        text = token[0]
        if text in "([{":
            depth += 1
        elif text in ")]}":
            depth = max(depth - 1, 0)
        elif text == "\n" and depth == 0:
            return token.end()
    return len(source)


def _blanked(magic: re.Match[str]) -> str:
    target = magic["target"]
    replacement = f"{target} None" if target else "pass"
    return magic["indent"] + replacement + "\n" * magic[0].count("\n")
