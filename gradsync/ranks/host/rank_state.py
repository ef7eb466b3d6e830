"""Trusted: the state of one rank of a run, and the data that it has sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gradsync.ranks.failures import endings
from gradsync.ranks.failures.exceptions import Raised
from gradsync.ranks.host.launchers.launcher import Lines
from gradsync.ranks.protocol import events, wire
from gradsync.records import Failure
from gradsync.text import size_text

MAX_STACKS = 256 * 2**10  # bytes kept of the stacks that it writes
MAX_OUTPUT = 256 * 2**10  # bytes kept of a rank's stdout and stderr
IN_FLIGHT = 8  # reads that empty a socket
PLACES = ("before", "after", "poll")
TURN_SECONDS = 1.0  # for a rank that waits for its turn to receive it

READ_BYTES = 2**16  # bytes of one read: malloc would map and unmap a larger buffer each time
LARGE_READ_BYTES = 2**20  # of a large frame


class RankState:
    def __init__(self, rank: int, lines: Lines, *, may_be_lost: bool = False) -> None:
        self.rank = rank
        self.lines = lines
        self.may_be_lost = may_be_lost
        self.ready = False  # it has received its task and started its process group
        self.held = ""  # where it waits for its turn: "before" or "after" a call, or in a "poll"
        self.joining = ""  # after its function has returned: the threads that it waits for
        self.idle = False  # the threads that it waits for can't call a collective
        self.answered = False
        self.value: Any = None
        self.raised: Raised | None = None
        self.broken: Failure | None = None  # it broke the protocol, or a limit of the run
        self.closed = False
        self.exit_code: int | None = None
        self.output = bytearray()
        self.stacks = bytearray()
        self.events = events.Reader(rank)
        self._decoder = wire.Decoder()

    @property
    def lost(self) -> bool:
        """Whether it died, and is one of the ranks that may die."""
        silent = self.closed and not self.answered and self.raised is None and self.broken is None
        return silent and self.ready and self.may_be_lost

    @property
    def failed(self) -> bool:
        ended = self.raised is not None or self.broken is not None or self.closed
        return ended and not self.answered and not self.lost

    @property
    def over(self) -> bool:
        return self.answered or self.failed or self.lost

    def send(self, kind: str, header: dict[str, Any], body: bytes, seconds: float) -> None:
        """Send a frame; a rank that does not receive it fails later."""
        channel = self.lines.channel
        channel.settimeout(seconds)
        try:
            channel.sendall(wire.head(kind, header, len(body), wire.MAX_TASK))
            channel.sendall(body)
        except OSError:
            pass
        channel.setblocking(False)

    @property
    def is_sending_much(self) -> bool:
        """Whether the rank is in the middle of a large frame."""
        return self._decoder.pending >= READ_BYTES

    def read_frames(self) -> Iterator[wire.Frame]:
        """Yield the frames that have arrived, up to the rank's final one."""
        size = LARGE_READ_BYTES if self.is_sending_much else READ_BYTES
        try:
            data = self.lines.channel.recv(size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.closed = self.closed or not data
        try:
            yield from self._frames(data)
        except wire.WireError as problem:
            self.breaks(str(problem))

    def _frames(self, data: bytes) -> Iterator[wire.Frame]:
        for frame in self._decoder.feed(b"" if self.over else data):
            yield frame
            if self.over:
                return

    def note(self, frame: wire.Frame) -> None:
        """Record why the rank waits outside of collectives.

        Raises:
            WireError: where it waits is unknown, or the names of threads are not strings.
        """
        if frame.kind == "held":
            if frame.header.get("at") not in PLACES:
                raise wire.WireError("it waits for its turn at an unknown place")
            self.held = frame.header["at"]
            return
        if frame.kind == "idle":
            self.idle = True
            return
        names = frame.header.get("threads", [])
        if type(names) is not list or not all(type(name) is str for name in names):
            raise wire.WireError("it sent invalid names of threads")
        self.joining = events.text(", ".join(names))

    def breaks(self, problem: str) -> None:
        """Record that it sent data which an unmodified rank never sends."""
        self.broken = endings.protocol(self.rank, problem)

    def go(self) -> None:
        """Permit it to start its function, or the collective that it has entered."""
        try:
            self.lines.channel.send(wire.GO)
        except BlockingIOError:
            self.breaks("it started collectives without waiting for permission")
        except OSError:
            self.closed = True

    def take_turn(self, started: list[int]) -> None:
        """Let it continue; it first completes its calls that all ranks have `started`."""
        self.held = ""
        self.send("turn", {"started": started}, b"", TURN_SECONDS)

    def dismiss(self) -> None:
        """Make its process exit, which closes its connections to the other ranks."""
        with suppress(OSError):
            self.lines.channel.shutdown(socket.SHUT_WR)

    def read_output(self) -> bool:
        """Read its output; return False when no more can arrive."""
        try:
            data = self.lines.output.recv(2**16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.output += data[: MAX_OUTPUT - len(self.output)]
        return bool(data)

    def read_stacks(self) -> bool:
        """Read its stacks; a crashing rank ends only after it has written all of them.

        Returns:
            False when no more can arrive.
        """
        try:
            data = self.lines.stacks.recv(2**16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.stacks += data[: MAX_STACKS - len(self.stacks)]
        return bool(data)

    def read_last_stacks(self) -> str:
        """Return all stacks that it has written, including data on its way."""
        for _ in range(IN_FLIGHT):
            self.read_stacks()
        return bytes(self.stacks).decode(errors="replace")

    def read_last_output(self) -> str:
        """Return all its output, including data on its way."""
        for _ in range(IN_FLIGHT):
            self.read_output()
        return bytes(self.output).decode(errors="replace")


class ResidentRank(RankState):
    """A rank that persists from one cell of a notebook to the next."""

    def __init__(self, rank: int, lines: Lines) -> None:
        super().__init__(rank, lines)
        self.ready = True

    def begin(self, *, asked: bool) -> None:
        """Expect an answer to the next request, unless only other ranks are asked."""
        self.answered = not asked
        self.value = self.raised = self.broken = None
        self.output.clear()

    def printed(self) -> str:
        """Return its output since `begin`, as far as it is kept."""
        text = self.output.decode(errors="replace")
        if len(self.output) < MAX_OUTPUT:
            return text
        return f"{text}\n... (a rank may print at most {size_text(MAX_OUTPUT)} in a cell)\n"

    def _frames(self, data: bytes) -> Iterator[wire.Frame]:
        return self._decoder.feed(data)  # its threads may continue after it has answered
