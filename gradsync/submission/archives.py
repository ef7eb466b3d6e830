"""Read the entries of .zip, .tar.gz and .tgz archives, without unpacking them.

A zip has a list of its files at its end, so only files that may count are read.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gradsync.submission.contents import FOLDER, MAX_FILE, Entry, Refused, Unreadable, printed
from gradsync.submission.folders import kind_flaw, open_regular
from gradsync.submission.tars import tar_entries

ENDINGS = (".zip", ".tar.gz", ".tgz")
REPACK = "pack the files again as a .zip"
PAGE = "web page, perhaps of a failed download"
OTHER_KINDS = {  # by their first bytes
    b"Rar!": "RAR archive",
    b"7z\xbc\xaf": "7z archive",
    b"\xfd7zX": "xz archive",
    b"BZh": "bzip2 archive",
    b"\x28\xb5\x2f\xfd": "Zstandard archive",
    **dict.fromkeys((b"<!do", b"<!DO", b"<htm", b"<HTM"), PAGE),
}
MAX_LIST = 2 * 2**20  # bytes of a zip's list of files
UTF8 = 0x800  # flag of a zip's entry: its name is in UTF-8
ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of a zip's entry: encrypted, strongly, with its headers
# zipfile does not document its exceptions for archives that were made to break it.
BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, MemoryError),
    *(ValueError, LookupError, ArithmeticError, RuntimeError),
)


def archive_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of an archive; read each entry before asking for the next.

    Raises:
        Unreadable: it is broken, or an archive of another kind.
        Refused: it is not a regular file.
    """
    file = open_regular(path)
    head = os.pread(file, 4, 0)
    if kind := OTHER_KINDS.get(head) or OTHER_KINDS.get(head[:3]):
        os.close(file)
        raise Unreadable(f"it is a {kind}: {REPACK}")
    is_zip = path.name.lower().endswith(".zip")
    if head[:2] in (b"PK", b"\x1f\x8b"):  # whatever its name is
        is_zip = head[:2] == b"PK"
    yield from (_zip_entries if is_zip else tar_entries)(file)


class GuardedFile(io.FileIO):
    """A file that limits the size of one read: zipfile reads the complete list of files at once."""

    longest = MAX_LIST

    def read(self, size: int | None = -1, /) -> bytes:
        most = self.longest + 1
        data = super().read(most if size is None or not 0 <= size < most else size) or b""
        if len(data) == most:
            raise Unreadable("its list of files is too long: hand in the course's files only")
        return data


def _zip_entries(file: int) -> Iterator[Entry]:
    with GuardedFile(file) as guarded:
        try:
            archive = zipfile.ZipFile(guarded)
        except BROKEN_ZIP as problem:
            text = f"it can't be read as a zip archive ({_why(problem)}): {REPACK}"
            raise Unreadable(text) from None
        with archive:
            for member in archive.infolist():
                name = zip_name(member).rstrip("/")
                size = max(member.file_size, member.compress_size)
                read = functools.partial(_read_zipped, archive, member)
                yield Entry(name, size, read, zip_flaw(member))


def zip_name(member: zipfile.ZipInfo) -> str:
    """Return the name of an entry as it was packed.

    `filename` is cut at a NUL, or may be an alternative name. Info-ZIP and macOS write UTF-8
    without the flag for it; then zipfile takes the bytes for those of an IBM PC.
    """
    name = member.orig_filename
    if not member.flag_bits & UTF8:
        with suppress(UnicodeError):
            return name.encode("cp437").decode("utf-8")
    return name


def zip_flaw(member: zipfile.ZipInfo) -> str:
    """Return why an entry of a zip is not a file that can be read, or ""."""
    mode = member.external_attr >> 16
    if member.orig_filename.endswith("/"):
        return FOLDER
    if stat.S_IFMT(mode) and (flaw := kind_flaw(mode)):  # 0: packed on a system without file modes
        return flaw
    if member.flag_bits & ENCRYPTED:
        return "is encrypted: hand it in without a password"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "has an unusual compression method: pack it as an ordinary zip"
    return ""


def _read_zipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(member) as file:
            source = file.read(MAX_FILE + 1)
    except BROKEN_ZIP as problem:
        raise Refused(f"is damaged in the archive: {_why(problem)}") from None
    if len(source) != member.file_size:
        raise Refused("is damaged in the archive: its size differs from the listed size")
    return source


def _why(problem: BaseException) -> str:
    return printed(str(problem) or type(problem).__name__)
