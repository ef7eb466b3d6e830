"""Check whether bytes are the source of a Python file."""

from __future__ import annotations

import codecs
import io
import re
import tokenize

# The allowed codecs of Python. Others can take hours to decode a megabyte (punycode), or decode to
# text that differs from the text in an editor (unicode_escape).
ENCODINGS = re.compile(
    r"utf-8(-sig)?|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|gb\w+|big5\w*|shift_jis\w*|euc_\w+"
)
SAVE = "save it as UTF-8 (in VS Code, click the encoding in the status bar)"
FOREIGN = {  # how files of other kinds begin
    rb"\s*<(!doctype|html)\b": "a web page: download the file itself (on GitHub, click Raw)",
    rb"\s*\{\\rtf": "formatted text (RTF): save it as plain text",
    rb'\s*\{\s*"(cells|metadata)"': "a notebook: copy its functions into a .py file",
    rb"PK\x03\x04": "an archive or a Word document: hand in the Python file itself",
}
MOSTLY = 0.4  # share of zero bytes; in UTF-16, almost every second byte of a program is 0


def source_flaw(source: bytes) -> str:
    """Return why a file is not Python source that can be decoded, or "".

    The encoding is found as Python finds it: from a byte order mark or a comment (PEP 263).
    """
    if not source.strip():
        return "is empty: was it saved?"
    for begins, kind in FOREIGN.items():
        if re.match(begins, source, re.IGNORECASE):
            return f"is not Python source, but {kind}"
    if _is_wide(source):
        return f"is saved as UTF-16 or UTF-32, which Python can't read: {SAVE}"
    if b"\0" in source:
        return f"contains NUL bytes, which Python does not allow: {SAVE}"
    try:
        declared, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        encoding = codecs.lookup(declared).name
    except (SyntaxError, LookupError):
        return f"is not UTF-8 and declares no encoding that Python supports: {SAVE}{_odd(source)}"
    if not ENCODINGS.fullmatch(encoding):
        return f"declares the encoding {encoding}: {SAVE}"
    try:
        source.decode(encoding)
    except UnicodeError:
        return f"has bytes that are not {encoding}: {SAVE}{_odd(source, encoding)}"
    return ""


def _is_wide(source: bytes) -> bool:
    """Return whether text has two or four bytes per character, even without a byte order mark."""
    if source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return True
    return any(source[start::2].count(0) > len(source) * MOSTLY for start in (0, 1))


def _odd(source: bytes, encoding: str = "utf-8") -> str:
    """Return a sentence on the first byte that can't be decoded, with its letter in Latin-1."""
    try:
        source.decode(encoding)
    except UnicodeDecodeError as problem:
        line = source.count(b"\n", 0, problem.start) + 1
        byte = source[problem.start : problem.start + 1]
        letter = byte.decode("latin-1")
        meant = f" ({letter} in Latin-1)" if letter.isprintable() else ""
        return f". The first byte that can't be decoded is {byte[0]:#04x}{meant} in line {line}"
    except UnicodeError:
        pass
    return ""
