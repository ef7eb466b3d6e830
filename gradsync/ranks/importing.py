"""Trusted, pure: an import of a learner's file that failed, in words a beginner understands."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

MODULE = "<module>"  # how Python names the code outside of functions
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
GUIDE = "Debugging a rank"
CLOSE = 0.75  # how alike a name and a misspelt one are, of 1
WIDEST = 64  # characters of a source line that are shown
DEFINES = re.compile(r"(async )?(def|class|import|from)\b|@")
NO_MODULE = re.compile(r"No module named '([^']+)'")
NO_NAME = re.compile(r"cannot import name '([^']+)' from '([^']+)'")
MODULES = ("numpy", "torch", "torchvision", "gradsync", "template_data_loader", "template_trainer")
GUARD = 'Code outside functions runs on import: move it under `if __name__ == "__main__":`.'
HELPER = (
    "Only the course's own files are handed in: if it is a file of your own, move what you need "
    "from it into {file}."
)
# What Python says of a syntax error, as far as it takes experience to understand it.
PLAIN = {
    "invalid syntax": "Look for a missing or additional bracket, comma, colon or quote, in this "
    "line or at the end of the line above.",
    "unexpected indent": "This line starts further to the right than the line above, but no block "
    "begins there.",
    "unindent does not match": "This line starts further to the left than the line above, but in "
    "a column where no block begins.",
    "expected an indented block": "The lines of a block start 4 spaces further to the right.",
    "was never closed": "Close the bracket, or remove it.",
    "unterminated": "Close the quotes.",
    "invalid non-printable character": "It was probably copied from a web page: type it again.",
    "invalid character": "It was probably copied from a web page or a PDF: type it again.",
    "inconsistent use of tabs": "Use spaces alone: most editors can convert all tabs.",
    "'return' outside function": "This line must be indented to belong to a function.",
    "source code cannot contain null bytes": "The file is not saved as UTF-8: save it as UTF-8.",
}


def syntax_error(message: str, where: str | None) -> str:
    """Say that a file is no Python, and what to look for."""
    file, _, line = (where or "the file").partition(":")
    at = f" in line {line}" if line else ""
    advice = next((text for sign, text in PLAIN.items() if sign in message), "")
    said = message if message.endswith("?") else f"{message}."
    return f"{file} has a syntax error{at}: {said} {advice}".rstrip()


def marked_line(source: str, offset: int) -> str:
    """Return a line of source with a caret below the character at `offset`, counted from 1."""
    text = source.rstrip("\n").expandtabs(1)
    skipped = len(text) - len(text.lstrip())
    start = max(skipped, offset - WIDEST + 8)
    shown = text[start : start + WIDEST].rstrip()
    column = min(max(offset - 1 - start, 0), len(shown))
    return f"{shown}\n{' ' * column}^"


def missing_name(name: str, file: str, defined: Iterable[str]) -> str:
    """Say that a file lacks a name, and which of its names may be the misspelt one."""
    close = difflib.get_close_matches(name, list(defined), n=1, cutoff=CLOSE)
    hint = f"; it defines {close[0]}: did you mean {name}?" if close else ""
    return f"{file} does not define {name}{hint}"


def missing_module(message: str, where: str | None) -> str:
    """Return what to do about a module that can't be found, "" if the message is about no such."""
    if not (found := NO_MODULE.search(message)):
        return ""
    name = found[1].partition(".")[0]
    close = [
        other
        for others in (MODULES, sorted(sys.stdlib_module_names))
        for other in difflib.get_close_matches(name, others, n=1, cutoff=CLOSE)
    ]
    if close and name not in close:
        return f": did you mean {close[0]}?"
    file = (where or "your file").partition(":")[0]
    return f". {HELPER.format(file=file)}"


def failed_import(type_: str, said: str, message: str, frames: Iterable[tuple[str, ...]]) -> str:
    """Say what an exception that comes up on import means.

    Args:
        type_: of the exception.
        said: the exception as Python prints it.
        message: its own words.
        frames: the learner's own: place, function, source line; innermost last.
    """
    rows = list(frames)
    outside = [row for row in rows if row[1] == MODULE]
    place, _, source = outside[-1]
    file = place.partition(":")[0]
    if hint := missing_module(message, place):
        return f"{place} raises {said}{hint}"
    if found := NO_NAME.search(message):
        return (
            f"{place} imports {found[1]} from {found[2]}, which does not define it: is it misspelt?"
        )
    if "attempted relative import" in message:
        return f"{place} has a relative import: write `from NAME import ...`, without the dot"
    ends = type_ in ("SystemExit", "KeyboardInterrupt")
    what = f"ends the process with {said}" if ends else f"raises {said}"
    text = f"{file} can't be imported: line {place.partition(':')[2]} {what}"
    inside = f" (at {rows[-1][0]})" if rows[-1][1] != MODULE else ""
    return f"{text}{inside}" + ("" if DEFINES.match(source) else f". {GUARD}")
