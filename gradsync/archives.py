"""The entries of archives: .zip, .tar.gz and .tgz, read in memory; nothing is ever unpacked.

A zip's files are listed at its end, so that only those are read that may count. A tar has to be
gone through, once, from its beginning to its end.
"""

from __future__ import annotations

import functools
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from gradsync.contents import (
    FOLDER,
    MAX_ENTRIES,
    MAX_FILE,
    TOO_MANY,
    Entry,
    Refused,
    Unreadable,
    printed,
)
from gradsync.folders import kind_flaw, open_regular

ENDINGS = (".zip", ".tar.gz", ".tgz")
MAX_LIST = 2 * 2**20  # bytes of a zip's list of files
MAX_UNPACKED = 256 * 2**20  # bytes of a tar that are looked at
CHUNK = 2**16  # bytes read at once
ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags of a zip's entry: itself, strongly, with its headers
# zipfile makes no promise what it raises where an archive was made to break it.
BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, MemoryError),
    *(ValueError, LookupError, ArithmeticError, RuntimeError),
)
WITHOUT_DATA = {
    tarfile.DIRTYPE: FOLDER,
    tarfile.SYMTYPE: "is a link",
    tarfile.LNKTYPE: "is a hard link",
    tarfile.CHRTYPE: "is a device",
    tarfile.BLKTYPE: "is a device",
    tarfile.FIFOTYPE: "is a pipe",
}


def archive_entries(path: Path) -> Iterator[Entry]:
    """Yield what an archive holds, each entry to be read before the next is asked for.

    Raises:
        Unreadable: it is no archive of the kind that its name says, or a broken one.
        Refused: it is no regular file.
    """
    is_zip = path.name.lower().endswith(".zip")
    yield from (_zip_entries if is_zip else _tar_entries)(open_regular(path))


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


class _Inflated(io.RawIOBase):
    """The content of a .gz file, forwards.

    Not gzip.GzipFile, which goes through a header's name byte by byte, and through any number of
    empty parts without end.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self._read = self._given = 0  # bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        try:
            data = self._next(len(buffer))
        except (zlib.error, OSError) as problem:
            raise Unreadable(f"it is no tar.gz that can be read: {_why(problem)}") from None
        buffer[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(CHUNK)
            data = self._inflate.decompress(packed, most)
            if not (packed or data or self._inflate.eof):
                raise Unreadable("it ends in the middle: a part of it is missing")
            self._read += len(packed) - len(self._inflate.unconsumed_tail)
            self._given += len(data)
            if max(self._read, self._given) > MAX_UNPACKED:
                size = f"{MAX_UNPACKED // 2**20} MiB"
                raise Unreadable(f"it holds more than {size}: hand in the course's files alone")
            if data:
                return data
        if (self._inflate.unused_data + self._file.read(CHUNK)).strip(b"\0"):
            raise Unreadable("more follows after its end: pack it again")
        return b""


def _tar_entries(file: int) -> Iterator[Entry]:
    with io.FileIO(file) as packed, io.BufferedReader(_Inflated(packed), CHUNK) as stream:
        yield from _Tar(cast("BinaryIO", stream)).entries()
        while stream.read(CHUNK):  # its checksum stands at its end
            pass


class _Tar:
    """A tar as it comes, header by header.

    Not tarfile.TarFile, which reads into memory what a header tells it to, calls itself for
    each header that is followed by another, and looks for some in quadratic time.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0  # bytes from its beginning
        self._said: dict[bytes, bytes] = {}  # by headers of their own, of the member that follows

    def entries(self) -> Iterator[Entry]:
        for _ in range(3 * MAX_ENTRIES):
            block = self._take(tarfile.BLOCKSIZE)
            if block.count(0) == len(block):  # the end, marked or not
                return
            try:
                member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except (tarfile.HeaderError, ValueError) as problem:
                raise Unreadable(f"it holds no tar that can be read: {_why(problem)}") from None
            if member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                self._said.update(_records(self._content(member.size)))
            elif member.type == tarfile.GNUTYPE_LONGNAME:
                self._said[b"path"] = self._content(member.size).partition(b"\0")[0]
            elif member.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                self._skip_to(self._at + _padded(member.size))
            else:
                yield from self._entry(member, block)
                self._said = {}
        raise Unreadable(TOO_MANY)

    def _entry(self, member: tarfile.TarInfo, header: bytes) -> Iterator[Entry]:
        flaw = WITHOUT_DATA.get(member.type, "")
        size = 0 if flaw else self._size(member)
        if any(key.startswith(b"GNU.sparse.") for key in self._said):
            flaw = "is a sparse file"
        elif member.type == tarfile.GNUTYPE_SPARSE:
            flaw, more = "is a sparse file", header[482]
            while more:
                more = self._content(tarfile.BLOCKSIZE)[504]
        elif not flaw and member.type not in tarfile.REGULAR_TYPES:
            flaw = "is no regular file"
        end = self._at + _padded(size)
        names = (self._said.get(b"GNU.sparse.name"), self._said.get(b"path"))
        name = next((n.decode("utf-8", "surrogateescape") for n in names if n), member.name)
        if name.endswith("/"):
            flaw = flaw or FOLDER
        yield Entry(name.rstrip("/"), size, functools.partial(self._content, size), flaw)
        self._skip_to(end)

    def _size(self, member: tarfile.TarInfo) -> int:
        size = self._said.get(b"size")
        return member.size if size is None else _number(size)

    def _content(self, size: int) -> bytes:
        """Return the next `size` bytes and go to the block after them."""
        if not 0 <= size <= MAX_FILE:
            raise Unreadable(f"a header in it has {size:,} bytes")
        content = self._take(size)
        if len(content) < size:
            raise Unreadable("it ends in the middle: a part of it is missing")
        self._skip_to(self._at + _padded(size) - size)
        return content

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._at += len(data)
        return data

    def _skip_to(self, end: int) -> None:
        if end < self._at:
            raise Unreadable("a member of it has a negative size")
        while self._at < end:
            if not self._take(min(CHUNK, end - self._at)):
                raise Unreadable("it ends in the middle: a part of it is missing")


def _records(content: bytes) -> dict[bytes, bytes]:
    """Return what a pax header says: lines such as "30 path=phase1/template_trainer.py"."""
    found, at = {}, 0
    while at < len(content):
        digits = content[at : at + 12].partition(b" ")[0]
        size = _number(digits)
        record = content[at : at + size]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) < size or not record.endswith(b"\n"):
            raise Unreadable("a pax header in it is broken")
        found[key] = value
        at += len(record)
    return found


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise Unreadable("a number in it is none")
    return int(digits)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _why(problem: BaseException) -> str:
    return printed(str(problem) or type(problem).__name__)
