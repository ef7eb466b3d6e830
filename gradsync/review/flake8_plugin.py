"""The rules of `gradsync review` as a plugin of flake8."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradsync.errors import UnusableInput
from gradsync.review.catalogue import RULES
from gradsync.review.reviewing import review_text


class Plugin:
    """The review of one file; flake8 creates an instance for each file.

    Args:
        tree: the file's syntax tree; it is not used, because it lacks the comments.
        filename: its path.
        lines: its lines.
    """

    name = "gradsync-review"
    version = "1.0"

    def __init__(self, tree: ast.AST, filename: str, lines: Sequence[str]) -> None:
        del tree
        self._filename = filename
        self._text = "".join(lines)

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        """Yield the line, the column from 0, the code with the text, and this class."""
        try:
            found = review_text(self._text, self._filename, RULES).findings
        except UnusableInput:  # flake8 itself reports the syntax error
            return
        for finding in found:
            if finding.path == self._filename:
                yield finding.line, finding.column - 1, f"{finding.code} {finding.text}", type(self)
