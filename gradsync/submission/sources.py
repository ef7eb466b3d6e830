"""Whether bytes are the text of a Python file."""

from __future__ import annotations

import codecs
import io
import re
import tokenize

# By the names of Python's codecs. With others a megabyte can take hours to decode (punycode), or
# what is read is not what an editor shows (unicode_escape).
ENCODINGS = re.compile(
    r"utf-8(-sig)?|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gb\w+|big5\w*|shift_jis\w*|euc_\w+"
)
SAVE = "save it as UTF-8, in VS Code by a click on the encoding in the status bar"
MOSTLY = 0.4  # of all bytes: in UTF-16 every second one of a program is 0


def source_flaw(source: bytes) -> str:
    """Return why a file is no Python source, "" if it is one that can be decoded.

    How it is encoded is found as Python does: by a byte order mark or a comment (PEP 263).
    """
    if not source.strip():
        return "is empty: write it, and save it"
    if _is_wide(source):
        return f"is saved as UTF-16 or UTF-32, which Python can't read: {SAVE}"
    if b"\0" in source:
        return f"holds NUL bytes, which is no Python: {SAVE}"
    try:
        declared, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        encoding = codecs.lookup(declared).name
    except (SyntaxError, LookupError):
        return f"is not UTF-8 and declares no encoding that Python knows: {SAVE}{_odd(source)}"
    if not ENCODINGS.fullmatch(encoding):
        return f"declares the encoding {encoding}: {SAVE}"
    try:
        source.decode(encoding)
    except UnicodeError:
        return f"has bytes that are not {encoding}: {SAVE}{_odd(source, encoding)}"
    return ""


def _is_wide(source: bytes) -> bool:
    """Tell whether text has two or four bytes a character, with a byte order mark or without."""
    if source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return True
    return any(source[start::2].count(0) > len(source) * MOSTLY for start in (0, 1))


def _odd(source: bytes, encoding: str = "utf-8") -> str:
    """Return where the first byte is that does not belong, and what it may be meant for."""
    try:
        source.decode(encoding)
    except UnicodeDecodeError as problem:
        line = source.count(b"\n", 0, problem.start) + 1
        byte = source[problem.start : problem.start + 1]
        letter = byte.decode("latin-1")
        meant = f" ({letter} in Latin-1)" if letter.isprintable() else ""
        return f". The first such byte is {byte[0]:#04x}{meant} in line {line}"
    except UnicodeError:
        pass
    return ""
