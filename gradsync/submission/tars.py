"""The members of a .tar.gz, which has to be gone through once, from its beginning to its end."""

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

MAX_UNPACKED = 256 * 2**20  # bytes of a tar that are looked at
MAX_HEADERS = 8 * 2**20  # bytes that a tar says of its members beside their own headers
CHUNK = 2**16  # bytes read at once
WITHOUT_DATA = {
    tarfile.DIRTYPE: FOLDER,
    tarfile.SYMTYPE: "is a link",
    tarfile.LNKTYPE: "is a hard link",
    tarfile.CHRTYPE: "is a device",
    tarfile.BLKTYPE: "is a device",
    tarfile.FIFOTYPE: "is a pipe",
}
SPARSE = {b"GNU.sparse.size", b"GNU.sparse.map", b"GNU.sparse.major"}  # one is in each form
SAID = {b"path", b"size", b"GNU.sparse.name", *SPARSE}


def tar_entries(file: int) -> Iterator[Entry]:
    """Yield what a .tar.gz holds, from its open descriptor, which is closed at the end.

    Raises:
        Unreadable: it is none, a broken one, or holds too much.
    """
    with io.FileIO(file) as packed, io.BufferedReader(_Inflated(packed), CHUNK) as stream:
        yield from _Tar(cast("BinaryIO", stream)).entries()
        while stream.read(CHUNK):  # its checksum stands at its end
            pass


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
            raise Unreadable(f"it is no tar.gz that can be read: {printed(str(problem))}") from None
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


class _Tar:
    """A tar as it comes, header by header.

    Not tarfile.TarFile, which reads into memory what a header tells it to, calls itself for
    each header that is followed by another, and looks for some in quadratic time.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._at = 0  # bytes from its beginning
        self._headers = 0  # bytes
        self._said: dict[bytes, bytes] = {}  # by headers of their own, of the member that follows

    def entries(self) -> Iterator[Entry]:
        for _ in range(3 * MAX_ENTRIES):
            block = self._take(tarfile.BLOCKSIZE)
            if block.count(0) == len(block):  # the end, marked or not
                return
            member = _member(block)
            if member.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                self._said.update(_records(self._header(member.size)))
            elif member.type == tarfile.GNUTYPE_LONGNAME:
                self._said[b"path"] = self._header(member.size).partition(b"\0")[0]
            elif member.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                self._skip_to(self._at + _padded(member.size))
            else:
                yield from self._entry(member, block)
                self._said = {}
        raise Unreadable(TOO_MANY)

    def _entry(self, member: tarfile.TarInfo, header: bytes) -> Iterator[Entry]:
        flaw = WITHOUT_DATA.get(member.type, "")
        size = 0 if flaw else self._size(member)
        if not SPARSE.isdisjoint(self._said):
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

    def _header(self, size: int) -> bytes:
        self._headers += size
        if size < 0 or size > MAX_FILE or self._headers > MAX_HEADERS:
            raise Unreadable("it has headers of impossible sizes: pack it again")
        return self._content(size)

    def _content(self, size: int) -> bytes:
        """Return the next `size` bytes and go to the block after them."""
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


def _member(header: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as problem:
        why = printed(str(problem))
        raise Unreadable(f"it holds no tar that can be read: {why}") from None


def _records(content: bytes) -> dict[bytes, bytes]:
    """Return what matters of a pax header, lines such as "30 path=phase1/template_trainer.py"."""
    found, at = {}, 0
    while at < len(content):
        digits = content[at : at + 12].partition(b" ")[0]
        size = _number(digits)
        record = content[at : at + size]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) < size or not record.endswith(b"\n"):
            raise Unreadable("a pax header in it is broken")
        if key in SAID:
            found[key] = value
        at += len(record)
    return found


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise Unreadable("a number in it is none")
    return int(digits)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
