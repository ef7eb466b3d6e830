"""Read the members of a .tar.gz with tarfile, in a process with limits; nothing is unpacked."""

from __future__ import annotations

import base64
import functools
import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradsync.submission.contents import FOLDER, MAX_FILE, MAX_NAME, Entry, Unreadable, printed

PROGRAM = Path(__file__).with_name("tar_program.py")
MAX_UNPACKED = 256 * 2**20  # bytes of a tar that are read
# For the process, which limits its own processor time to far less: only one that was stopped, or
# that gets almost no processor time, takes longer.
SECONDS = 120.0
KINDS = {
    tarfile.DIRTYPE: FOLDER,
    tarfile.SYMTYPE: "is a link",
    tarfile.LNKTYPE: "is a hard link",
    tarfile.CHRTYPE: "is a device",
    tarfile.BLKTYPE: "is a device",
    tarfile.FIFOTYPE: "is a pipe",
}


def tar_entries(file: int) -> Iterator[Entry]:
    """Yield the entries of a .tar.gz from its open descriptor, which is closed at the end.

    Raises:
        Unreadable: it is not a .tar.gz, is broken, or is too large.
    """
    limits = map(str, (MAX_UNPACKED, MAX_FILE, MAX_NAME))
    command = [sys.executable, "-I", "-S", str(PROGRAM), *limits]
    with (
        open(file, "rb") as packed,
        subprocess.Popen(
            command, stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process,
    ):
        assert process.stdout is not None
        why = "it takes too much memory or time"  # if the process does not say
        timer = threading.Timer(SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        try:
            for line in process.stdout:
                found = json.loads(line)
                if "why" in found:
                    why = found["why"]
                else:
                    yield _entry(found)
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            timer.join()  # a grader with a further thread would not fork
            process.kill()  # if not all entries are needed
    if why and is_late:
        why = f"reading took more than {SECONDS:g} s. Run the same command again"
    if why:
        raise Unreadable(f"it can't be read as a .tar.gz: {printed(why)}")


def _entry(found: dict[str, Any]) -> Entry:
    name, kind = found["name"], found["kind"].encode("latin-1")
    flaw = KINDS.get(kind, "")
    if found["sparse"]:
        flaw = "is a sparse file"
    elif name.endswith("/"):
        flaw = flaw or FOLDER
    elif not flaw and kind not in tarfile.REGULAR_TYPES:
        flaw = "is not a regular file"
    read = functools.partial(base64.b64decode, found["content"])
    return Entry(name.rstrip("/"), 0 if kind in KINDS else found["size"], read, flaw)
