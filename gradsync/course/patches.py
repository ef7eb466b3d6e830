"""Replace a piece of Python code that is found by its tokens.

Comments, line breaks and spaces do not count, so a patch of a known mistake still fits after the
solution was reformatted or a comment was rewritten.
"""

from __future__ import annotations

import functools
import io
import re
import tokenize

_TOKEN = re.compile(r"\w+|[^\w\s]")
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


def patched(source: str, old: str, new: str) -> str:
    """Return `source` with `new` in place of the code `old`.

    Args:
        source: the text of a Python file.
        old: code that occurs in it once. If it begins with spaces, whole lines are replaced.
        new: text with its own line breaks and indentation.

    Raises:
        ValueError: `old` is not found exactly once.
    """
    code = _code(source)
    wanted = _TOKEN.findall(_COMMENT.sub("", old))
    words = [token.group() for token in code]
    starts = [
        at
        for at in range(len(words) - len(wanted) + 1)
        if wanted and words[at : at + len(wanted)] == wanted
    ]
    if len(starts) != 1:
        raise ValueError(f"the code to replace is found {len(starts)} times, not once:\n{old}")
    begin = code[starts[0]].start()
    line = source.rfind("\n", 0, begin) + 1
    if old[:1].isspace() and not source[line:begin].strip():
        begin = line
    return source[:begin] + new.strip("\n") + source[code[starts[0] + len(wanted) - 1].end() :]


@functools.lru_cache(maxsize=32)  # most patches are of the same few files
def _code(source: str) -> list[re.Match[str]]:
    """Return the tokens of a source without its comments, at their places in it."""
    lines = source.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            (row, first), (_, last) = token.start, token.end
            text = lines[row - 1]
            lines[row - 1] = text[:first] + " " * (last - first) + text[last:]
    return list(_TOKEN.finditer("".join(lines)))
