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


def source_flaw(source: bytes) -> str:
    """Return why a file is no Python source, "" if it is one that can be decoded.

    How it is encoded is found as Python does: by a byte order mark or a comment (PEP 263).
    """
    if b"\0" in source:
        return "holds NUL bytes, which is no Python: save it as UTF-8"
    try:
        declared, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        encoding = codecs.lookup(declared).name
    except (SyntaxError, LookupError):
        return "is not UTF-8 and declares no encoding that Python knows: save it as UTF-8"
    if not ENCODINGS.fullmatch(encoding):
        return f"declares the encoding {encoding}: save it as UTF-8"
    try:
        source.decode(encoding)
    except UnicodeError as problem:
        start = problem.start if isinstance(problem, UnicodeDecodeError) else 0
        line = source.count(b"\n", 0, start) + 1
        return f"has bytes in line {line} that are not {encoding}: save it as UTF-8"
    return ""
