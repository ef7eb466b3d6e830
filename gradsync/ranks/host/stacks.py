"""Trusted: read the stacks of a rank's threads, written on request or in a crash."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection

from gradsync.ranks.host.launchers.launcher import RankProcesses
from gradsync.ranks.host.rank_state import MAX_STACKS
from gradsync.ranks.protocol.user_files import WATCH, file_and_line

ANSWER_SECONDS = 0.4  # for ranks to write their stacks
QUIET_SECONDS = 0.1  # without new data after which a dump is complete
FRAME = re.compile(r'File "([^"]{1,4096})", line (\d{1,9}) in (\S{1,512})')
THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
DEEP = 20  # if so many of the 100 frames in a dump belong to one function, it is a recursion
MAX_NAME = 80  # characters of a function's name


def now(
    processes: RankProcesses, ranks: Collection[int], shows: Callable[[str], bool]
) -> dict[int, str | None]:
    """Return the line in the user's files that each running rank is at, or None."""
    texts = {rank: bytearray() for rank in ranks}
    until = time.monotonic() + ANSWER_SECONDS
    with selectors.PollSelector() as selector:
        for rank in ranks:
            processes.ask_stacks(rank)
            selector.register(processes.lines[rank].stacks, selectors.EVENT_READ, rank)
        while (left := until - time.monotonic()) > 0 and selector.get_map():
            ready = selector.select(min(left, QUIET_SECONDS))
            if not ready and all(texts.values()):
                break
            for key, _ in ready:
                if not _read(processes.lines[key.data].stacks, texts[key.data]):
                    selector.unregister(key.fileobj)
    return {rank: user_line(text.decode(errors="replace"), shows) for rank, text in texts.items()}


def user_line(text: str, shows: Callable[[str], bool]) -> str | None:
    """Return the innermost line in the user's files, from a dump of all threads' stacks.

    Of the threads that do not wait in a collective, it is a line of the one that started first.
    """
    for file, number, _ in _user_frames(text, shows):
        return file_and_line(file, int(number))
    return None


def endless_call(text: str, shows: Callable[[str], bool]) -> str | None:
    """Return the user's function that keeps calling itself on that thread, or None."""
    counts = Counter((file, name) for file, _, name in _user_frames(text, shows))
    for (_, name), count in counts.most_common(1):
        return name[:MAX_NAME] if count >= DEEP else None
    return None


def _user_frames(text: str, shows: Callable[[str], bool]) -> list[tuple[str, str, str]]:
    """Return the frames of the user's files on one thread, innermost first."""
    threads = [FRAME.findall(part) for part in reversed(THREAD.split(text))]
    busy = [
        frames for frames in threads if not any((file, name) in WATCH for file, _, name in frames)
    ]
    for frames in (*busy, *threads):
        if users := [frame for frame in frames if shows(frame[0])]:
            return users
    return []


def _read(line: socket.socket, text: bytearray) -> bool:
    try:
        data = line.recv(2**16, socket.MSG_DONTWAIT)
    except OSError:
        return False
    text += data
    return bool(data) and len(text) < MAX_STACKS
