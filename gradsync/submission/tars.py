"""Read the members of a .tar.gz in one pass, from its beginning to its end."""

from __future__ import annotations

import functools
import io
import tarfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from gradsync.submission.contents import (
    FOLDER,
    MAX_ENTRIES,
    MAX_FILE,
    TOO_MANY,
    Entry,
    Unreadable,
    printed,
)
from gradsync.text import size_text

MAX_UNPACKED = 256 * 2**20  # bytes of a tar that are read
MAX_HEADERS = 8 * 2**20  # bytes of extended headers in a tar
CHUNK = 2**16  # bytes read at once
WITHOUT_DATA = {
    tarfile.DIRTYPE: FOLDER,
    tarfile.SYMTYPE: "is a link",
    tarfile.LNKTYPE: "is a hard link",
    tarfile.CHRTYPE: "is a device",
    tarfile.BLKTYPE: "is a device",
    tarfile.FIFOTYPE: "is a pipe",
}
SPARSE = {
    b"GNU.sparse.size",
    b"GNU.sparse.map",
    b"GNU.sparse.major",
}  # each format has one of these
FIELDS = {b"path", b"size", b"GNU.sparse.name", *SPARSE}


def tar_entries(file: int) -> Iterator[Entry]:
    """Yield the entries of a .tar.gz from its open descriptor, which is closed at the end.

    Raises:
        Unreadable: it is not a .tar.gz, is broken, or is too large.
    """
    with io.FileIO(file) as packed, io.BufferedReader(_Inflated(packed), CHUNK) as stream:
        yield from _Tar(cast("BinaryIO", stream)).entries()
        while stream.read(CHUNK):  # reaches the checksum at the end
            pass


class _Inflated(io.RawIOBase):
    """The content of a .gz file, read forwards.

    gzip.GzipFile is not used: it reads the name in a header byte by byte, and reads any number of
    empty parts.
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
            raise Unreadable(f"it can't be read as a .tar.gz: {printed(str(problem))}") from None
        buffer[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(CHUNK)
            data = self._inflate.decompress(packed, most)
            if not (packed or data or self._inflate.eof):
                raise Unreadable("it is incomplete: a part of it is missing")
            self._read += len(packed) - len(self._inflate.unconsumed_tail)
            self._given += len(data)
            if max(self._read, self._given) > MAX_UNPACKED:
                size = size_text(MAX_UNPACKED)
                raise Unreadable(f"it has more than {size}: hand in the course's files only")
            if data:
                return data
        if (self._inflate.unused_data + self._file.read(CHUNK)).strip(b"\0"):
            raise Unreadable("it has data after its end: pack it again")
        return b""


class _Tar:
    """A tar, read header by header.

    tarfile.TarFile is not used: it reads as many bytes into memory as a header claims, recurses for
    each extended header, and searches for some headers in quadratic time.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0  # bytes from the beginning
        self._headers = 0  # bytes
        self._fields: dict[bytes, bytes] = {}  # from extended headers, for the next member

    def entries(self) -> Iterator[Entry]:
        for _ in range(3 * MAX_ENTRIES):
            block = self._take(tarfile.BLOCKSIZE)
            if block.count(0) == len(block):  # the end, marked or not
                return
            member = _member(block)
            if member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                self._fields.update(_records(self._header(member.size)))
            elif member.type == tarfile.GNUTYPE_LONGNAME:
                self._fields[b"path"] = self._header(member.size).partition(b"\0")[0]
            elif member.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                self._skip_to(self._at + _padded(member.size))
            else:
                yield from self._entry(member, block)
                self._fields = {}
        raise Unreadable(TOO_MANY)

    def _entry(self, member: tarfile.TarInfo, header: bytes) -> Iterator[Entry]:
        flaw = WITHOUT_DATA.get(member.type, "")
        size = 0 if flaw else self._size(member)
        if not SPARSE.isdisjoint(self._fields):
            flaw = "is a sparse file"
        elif member.type == tarfile.GNUTYPE_SPARSE:
            flaw, more = "is a sparse file", header[482]
            while more:
                more = self._content(tarfile.BLOCKSIZE)[504]
        elif not flaw and member.type not in tarfile.REGULAR_TYPES:
            flaw = "is not a regular file"
        end = self._at + _padded(size)
        names = (self._fields.get(b"GNU.sparse.name"), self._fields.get(b"path"))
        name = next((n.decode("utf-8", "surrogateescape") for n in names if n), member.name)
        if name.endswith("/"):
            flaw = flaw or FOLDER
        yield Entry(name.rstrip("/"), size, functools.partial(self._content, size), flaw)
        self._skip_to(end)

    def _size(self, member: tarfile.TarInfo) -> int:
        size = self._fields.get(b"size")
        return member.size if size is None else _number(size)

    def _header(self, size: int) -> bytes:
        self._headers += size
        if size < 0 or size > MAX_FILE or self._headers > MAX_HEADERS:
            raise Unreadable("it has a header of an impossible size: pack it again")
        return self._content(size)

    def _content(self, size: int) -> bytes:
        """Return the next `size` bytes and skip to the next block."""
        content = self._take(size)
        if len(content) < size:
            raise Unreadable("it is incomplete: a part of it is missing")
        self._skip_to(self._at + _padded(size) - size)
        return content

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._at += len(data)
        return data

    def _skip_to(self, end: int) -> None:
        if end < self._at:
            raise Unreadable("one of its members has a negative size")
        while self._at < end:
            if not self._take(min(CHUNK, end - self._at)):
                raise Unreadable("it is incomplete: a part of it is missing")


def _member(header: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as problem:
        why = printed(str(problem))
        raise Unreadable(f"its content can't be read as a tar: {why}") from None


def _records(content: bytes) -> dict[bytes, bytes]:
    """Return the needed fields of a pax header, such as "30 path=phase1/template_trainer.py"."""
    found, at = {}, 0
    while at < len(content):
        digits = content[at : at + 12].partition(b" ")[0]
        size = _number(digits)
        record = content[at : at + size]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) < size or not record.endswith(b"\n"):
            raise Unreadable("one of its pax headers is broken")
        if key in FIELDS:
            found[key] = value
        at += len(record)
    return found


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise Unreadable("one of its headers has an invalid number")
    return int(digits)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
