"""The program that reads a .tar.gz from stdin and prints its members, one JSON object a line.

It is a process of its own because some archives make tarfile use any amount of memory or time. It
is run as a file, so it imports only the standard library.
"""

from __future__ import annotations

import base64
import json
import resource
import sys
import tarfile
from typing import Any

MEMORY = 2**28  # bytes
SECONDS = 10  # of processor time
CHUNK = 2**16  # bytes read at once


def main(most_unpacked: int, largest_file: int, longest_name: int) -> None:
    """Print each member, and at the end the reason why the rest can't be read, or ""."""
    why = ""
    try:
        _limit(resource.RLIMIT_AS, MEMORY)
        _limit(resource.RLIMIT_CPU, SECONDS)
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r:gz") as archive:
            for member in archive:
                if member.size < 0:
                    raise tarfile.ReadError("a member has a negative size")
                if member.offset_data + member.size > most_unpacked:
                    size = f"{most_unpacked // 2**20} MiB"
                    raise tarfile.ReadError(
                        f"it has more than {size}: hand in the course's files only"
                    )
                print(json.dumps(_described(archive, member, largest_file, longest_name)))
            _read_to_end(archive)
    except Exception as problem:  # noqa: BLE001 - tarfile documents no exceptions for attacks
        why = str(problem) or type(problem).__name__
    print(json.dumps({"why": why[:longest_name]}))


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _described(
    archive: tarfile.TarFile, member: tarfile.TarInfo, largest_file: int, longest_name: int
) -> dict[str, Any]:
    sparse = member.issparse() or any(key.startswith("GNU.sparse.") for key in member.pax_headers)
    content = b""
    may_count = member.name.casefold().removesuffix(".txt").endswith(".py")
    if member.isreg() and not sparse and may_count and member.size <= largest_file:
        file = archive.extractfile(member)
        content = file.read() if file else b""
    return {
        "name": member.name[: longest_name + 1],
        "kind": member.type.decode("latin-1"),
        "sparse": sparse,
        "size": member.size,
        "content": base64.b64encode(content).decode(),
    }


def _read_to_end(archive: tarfile.TarFile) -> None:
    """Read what follows the last member: only zeros, and then the checksum."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    while data := archive.fileobj.read(CHUNK):
        if data.strip(b"\0"):
            raise tarfile.ReadError("it has data after its end")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
