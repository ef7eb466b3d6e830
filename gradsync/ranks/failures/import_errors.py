"""Trusted, pure: explain to a beginner why a file could not be imported."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable

from gradsync.text import full_stop

MODULE = "<module>"  # how Python names the code outside of functions
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
GUIDE = "Debugging a rank"
CLOSE = 0.75  # how similar a misspelt name must be, from 0 to 1
WIDEST = 100  # characters of a source line that are shown: most lines are shown whole
DEFINES = re.compile(r"(async )?(def|class|import|from)\b|@")
ASSIGNS = re.compile(r"\w+(\s*:[^=]+)?\s*=(?!=)")
STARTS_GROUP = "default process group twice"
NO_MODULE = re.compile(r"No module named '([^']+)'")
NO_NAME = re.compile(r"cannot import name '([^']+)' from '([^']+)'")
MODULES = ("numpy", "torch", "torchvision", "gradsync", "template_data_loader", "template_trainer")
GUARD = 'Code outside functions runs on import. Move it under `if __name__ == "__main__":`.'
MISSPELT = (
    "Is the name misspelt? If nothing needs this line on import, move it under "
    '`if __name__ == "__main__":`.'
)
HELPER = (
    "If it is your own file, the ranks can't import it, because only the course's files are handed "
    "in: move the code that you need into {file}."
)
NOT_INSTALLED = "Ranks import from the same `sys.path` as this program: is it installed there?"
# Python's messages that a beginner may not understand -> what to do.
PLAIN = {
    "invalid syntax": "Look for a missing or extra bracket, comma, colon or quote, in this "
    "line or at the end of the line above.",
    "unexpected indent": "This line is indented more than the line above, but no block begins "
    "here.",
    "unindent does not match": "This line is indented less than the line above, but "
    "does not line up with any earlier line.",
    "expected an indented block": "Indent the lines of a block by 4 spaces.",
    "was never closed": "Close the bracket, or remove it.",
    "unterminated": "Close the quotes.",
    "invalid non-printable character": "It was probably copied from a web page: type it again.",
    "invalid character": "It was probably copied from a web page or a PDF: type it again.",
    "inconsistent use of tabs": "Use spaces only: most editors can convert all tabs.",
    "'return' outside function": "Indent this line so that it belongs to a function.",
    "source code cannot contain null bytes": "The file is not saved as UTF-8: save it as UTF-8.",
}


def syntax_error(message: str, where: str | None) -> str:
    """Describe a syntax error, with advice on what to look for."""
    file, _, line = (where or "the file").partition(":")
    at = f" in line {line}" if line else ""
    advice = next((text for sign, text in PLAIN.items() if sign in message), "")
    return f"{file} has a syntax error{at}: {full_stop(message)} {advice}".rstrip()


def marked_line(source: str, offset: int) -> str:
    """Return a line of source with a caret below the character at `offset`, counted from 1."""
    text = source.rstrip("\n").expandtabs(1)
    skipped = len(text) - len(text.lstrip())
    start = max(skipped, offset - WIDEST + 8)
    shown = text[start : start + WIDEST].rstrip()
    column = min(max(offset - 1 - start, 0), len(shown))
    return f"{shown}\n{' ' * column}^"


def missing_name(name: str, file: str, defined: Iterable[str]) -> str:
    """Describe a name that a file lacks, with the name in the file that may be misspelt."""
    close = difflib.get_close_matches(name, list(defined), n=1, cutoff=CLOSE)
    hint = f" It defines {close[0]}: did you mean {name}?" if close else ""
    return f"{file} does not define {name}.{hint}"


def missing_module(message: str, where: str | None, *, in_course: bool = True) -> str:
    """Return a space and a sentence about a module that can't be found, or ""."""
    if not (found := NO_MODULE.search(message)):
        return ""
    name = found[1].partition(".")[0]
    close = [
        other
        for others in (MODULES, sorted(sys.stdlib_module_names))
        for other in difflib.get_close_matches(name, others, n=1, cutoff=CLOSE)
    ]
    if close and name not in close:
        return f" Did you mean {close[0]}?"
    if not in_course:
        return f" {NOT_INSTALLED}"
    file = (where or "your file").partition(":")[0]
    return f" {HELPER.format(file=file)}"


def failed_import(type_: str, said: str, message: str, frames: Iterable[tuple[str, ...]]) -> str:
    """Describe an exception that a file raised while it was imported.

    Args:
        type_: the exception's type.
        said: the exception as Python prints it.
        message: the exception's message.
        frames: the frames in the learner's files: place, function, source line; innermost last.
    """
    rows = list(frames)
    outside = [row for row in rows if row[1] == MODULE]
    place, _, source = outside[-1]
    file = place.partition(":")[0]
    if hint := missing_module(message, place):
        return f"{place} raises {full_stop(said)}{hint}"
    if found := NO_NAME.search(message):
        return (
            f"{place} imports {found[1]} from {found[2]}, which does not define it. "
            "Is the name misspelt?"
        )
    if "attempted relative import" in message:
        return f"{place} has a relative import. Write `from NAME import ...`, without the dot."
    ends = type_ in ("SystemExit", "KeyboardInterrupt")
    what = f"ends the process with {said}" if ends else f"raises {said}"
    inside = f" (at {rows[-1][0]})" if rows[-1][1] != MODULE else ""
    if STARTS_GROUP in message:
        what = "starts a process group, but only your functions may start one"
    text = f"{file} can't be imported: line {place.partition(':')[2]} {what}"
    advice = f" {GUARD}"
    if type_ == "NameError" and ASSIGNS.match(source):  # other code may need the name
        advice = f" {MISSPELT}"
    return full_stop(text + inside) + ("" if DEFINES.match(source) else advice)
