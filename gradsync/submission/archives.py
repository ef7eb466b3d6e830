"""The entries of archives: .zip, .tar.gz and .tgz, read in memory; nothing is ever unpacked.

A zip's files are listed at its end, so that only those are read that may count.
"""

from __future__ import annotations

import functools
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from gradsync.submission.contents import FOLDER, MAX_FILE, Entry, Refused, Unreadable, printed
from gradsync.submission.folders import kind_flaw, open_regular
from gradsync.submission.tars import tar_entries

ENDINGS = (".zip", ".tar.gz", ".tgz")
MAX_LIST = 2 * 2**20  # bytes of a zip's list of files
ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of a zip's entry: itself, strongly, with its headers
# zipfile makes no promise what it raises where an archive was made to break it.
BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, MemoryError),
    *(ValueError, LookupError, ArithmeticError, RuntimeError),
)


def archive_entries(path: Path) -> Iterator[Entry]:
    """Yield what an archive holds, each entry to be read before the next is asked for.

    Raises:
        Unreadable: it is no archive of the kind that its name says, or a broken one.
        Refused: it is no regular file.
    """
    is_zip = path.name.lower().endswith(".zip")
    yield from (_zip_entries if is_zip else tar_entries)(open_regular(path))


class _Guarded(io.FileIO):
    """A file that gives no more at once than may be kept: zipfile reads a list of files whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        most = MAX_LIST + 1
        data = super().read(most if size is None or not 0 <= size < most else size) or b""
        if len(data) == most:
            raise Unreadable("its list of files is too long: hand in the course's files alone")
        return data


def _zip_entries(file: int) -> Iterator[Entry]:
    with _Guarded(file) as guarded:
        try:
            archive = zipfile.ZipFile(guarded)
        except BROKEN_ZIP as problem:
            raise Unreadable(f"it is no zip archive that can be read: {_why(problem)}") from None
        with archive:
            for member in archive.infolist():
                # Its name as it came: zipfile cuts the other one at a NUL, or takes an alternative.
                name = member.orig_filename.rstrip("/")
                size = max(member.file_size, member.compress_size)
                read = functools.partial(_read_zipped, archive, member)
                yield Entry(name, size, read, _zip_flaw(member))


def _zip_flaw(member: zipfile.ZipInfo) -> str:
    mode = member.external_attr >> 16
    if member.orig_filename.endswith("/"):
        return FOLDER
    if stat.S_IFMT(mode) and (flaw := kind_flaw(mode)):  # 0: packed where there are no modes
        return flaw
    if member.flag_bits & ENCRYPTED:
        return "is encrypted: hand it in without a password"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is compressed by a rare method: pack it as an ordinary zip"
    return ""


def _read_zipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(member) as file:
            source = file.read(MAX_FILE + 1)
    except BROKEN_ZIP as problem:
        raise Refused(f"is broken in the archive: {_why(problem)}") from None
    if len(source) != member.file_size:
        raise Refused("is broken in the archive: it is shorter than the archive says")
    return source


def _why(problem: BaseException) -> str:
    return printed(str(problem) or type(problem).__name__)
