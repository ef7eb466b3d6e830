"""Zip archives that depend only on the files in them, not on the time or the machine."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that the format can store
PERMISSIONS = 0o100644 << 16  # of a regular file
OF_PROGRAMS = 0o100755 << 16  # of one that begins with "#!"


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of the files, by path, in the mapping's order."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, FIRST_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, on every system
            info.external_attr = OF_PROGRAMS if content.startswith(b"#!") else PERMISSIONS
            archive.writestr(info, content, compresslevel=9)
    return buffer.getvalue()
