"""Trusted: one run from its start to what was observed of it.

The loop reads what the ranks send, lets each collective start when it fits those of the others,
and ends the run as soon as all ranks have answered, or one has failed and no other can go on.
"""

from __future__ import annotations

import re
import selectors
import socket
import tempfile
import time
from typing import Any

from gradsync.ranks import events, failures, values, wire
from gradsync.ranks.crew import Crew, Launcher
from gradsync.ranks.failures import Raised
from gradsync.ranks.standoff import Standoff
from gradsync.ranks.task import Task
from gradsync.records import Event, Failure, Observation

POLL_SECONDS = 0.05  # how soon the death of a rank is seen whose children hold its sockets open
GRACE_SECONDS = 1.0  # for ranks that still compute when another has failed
SETTLE_SECONDS = 0.4  # for data already on its way, where a collective can do without some rank
EXIT_SECONDS = 2.0  # between a rank's closed socket and its exit code
STACK_SECONDS = 0.2  # between two pieces of a stack that a rank writes
MAX_OUTPUT = 256 * 2**10  # bytes kept of each rank's stdout and stderr
MAX_EVENTS = 200_000  # kept of a run
STACK_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class RankState:
    """What is known of one rank so far."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.decoder = wire.Decoder()
        self.value: Any = None
        self.answered = False
        self.raised: Raised | None = None
        self.broken: Failure | None = None  # it broke the protocol
        self.closed = False
        self.exit_code: int | None = None
        self.output = bytearray()

    @property
    def over(self) -> bool:
        return self.answered or self.failed

    @property
    def failed(self) -> bool:
        return self.raised is not None or self.broken is not None or self.closed

    @property
    def innocent(self) -> bool:
        """Tell whether it may have failed only because another rank did."""
        return self.raised is not None and self.raised.in_collective


class Run:
    def __init__(self, task: Task, crew: Crew, directory: str) -> None:
        self._task = task
        self._crew = crew
        self._began = time.monotonic()
        self._standoff = Standoff(task.world_size)
        self._ranks = [RankState(rank) for rank in range(task.world_size)]
        self._events: list[Event] = []
        self._mismatch: Failure | None = None
        self._failed_at: float | None = None
        self._stuck_at: float | None = None
        self._directory = directory

    def observe(self) -> Observation:
        """Hand out the task and watch the ranks until the run is decided."""
        payload = self._task.payload()
        with selectors.DefaultSelector() as selector:
            for state, lines in zip(self._ranks, self._crew.lines, strict=True):
                header = self._task.header(state.rank, self._directory, self._began)
                _send(lines.channel, wire.pack("task", header, payload))
                selector.register(lines.channel, selectors.EVENT_READ, (self._read_frames, state))
                selector.register(lines.output, selectors.EVENT_READ, (self._read_output, state))
            failure = None
            while failure is None and not all(state.answered for state in self._ranks):
                for key, _ in selector.select(POLL_SECONDS):
                    read, state = key.data
                    if not read(key.fileobj, state):
                        selector.unregister(key.fileobj)
                failure = self._decide()
        seconds = time.monotonic() - self._began
        return self._observation(failure, seconds)

    def _decide(self) -> Failure | None:
        """Return the failure once it is certain, None while the run may still succeed."""
        if self._mismatch is not None:
            return self._root_failure() or self._mismatch
        now = time.monotonic()
        self._notice_deaths()
        live = {state.rank for state in self._ranks if not state.over}
        self._standoff.over = set(range(self._task.world_size)) - live
        stuck = self._standoff.stuck()
        if any(state.failed for state in self._ranks):
            self._failed_at = self._failed_at or now
            if live <= stuck or now - self._failed_at > GRACE_SECONDS:
                return self._root_failure() or self._any_failure()
            return None
        if stuck:
            self._stuck_at = self._stuck_at or now
            proved = self._standoff.certain(stuck) or now - self._stuck_at > SETTLE_SECONDS
            if proved and (live == stuck or now - self._stuck_at > GRACE_SECONDS):
                return self._standoff.explain(stuck)
        else:
            self._stuck_at = None
        if now - self._began > self._task.timeout:
            busy = live - self._standoff.blocked() or live
            places = {rank: self._place(rank) for rank in busy}
            return failures.timeout(self._task.timeout, places, live - busy)
        return None

    def _root_failure(self) -> Failure | None:
        """Return what the ranks did that failed of themselves, not because another did."""
        for state in self._ranks:
            if state.broken is not None:
                return state.broken
        for state in self._ranks:
            if state.closed and state.raised is None and not state.answered:
                return failures.left(state.rank, self._exit_code(state))
        return self._raised([s for s in self._ranks if s.raised and not s.innocent])

    def _any_failure(self) -> Failure | None:
        return self._raised([state for state in self._ranks if state.raised])

    def _raised(self, states: list[RankState]) -> Failure | None:
        errors = {state.rank: state.raised for state in states if state.raised is not None}
        if not errors:
            return None
        first = next(iter(errors.values()))
        return failures.raised(first, tuple(r for r, error in errors.items() if error.alike(first)))

    def _exit_code(self, state: RankState) -> int | None:
        until = time.monotonic() + EXIT_SECONDS
        while state.exit_code is None and time.monotonic() < until:
            state.exit_code = self._crew.exit_codes().get(state.rank)
            time.sleep(0.002)
        return state.exit_code

    def _notice_deaths(self) -> None:
        """Close the books on ranks that have ended, though a child may hold their sockets open."""
        for rank, code in self._crew.exit_codes().items():
            state = self._ranks[rank]
            state.exit_code = code
            while not state.over and _readable(self._crew.lines[rank].channel):
                if not self._read_frames(self._crew.lines[rank].channel, state):
                    break
            state.closed = state.closed or not state.over

    def _place(self, rank: int) -> str | None:
        """Ask a rank that still runs for the user's line that it is at."""
        self._crew.ask_stacks(rank)
        line = self._crew.lines[rank].stacks
        line.settimeout(STACK_SECONDS)
        text = bytearray()
        try:
            while len(text) < MAX_OUTPUT and (data := line.recv(2**16)):
                text += data
        except OSError:  # silent for long enough: that was all
            pass
        for file, number in STACK_LINE.findall(text.decode(errors="replace")):
            if self._task.shows(file):
                return f"{file.rsplit('/', 1)[-1]}:{number}"
        return None

    def _read_frames(self, channel: socket.socket, state: RankState) -> bool:
        """Take what a rank sent; False when nothing more can come."""
        try:
            data = channel.recv(2**20)
            for frame in state.decoder.feed(data):
                self._take(frame, state, channel)
        except (wire.WireError, BlockingIOError) as problem:
            state.broken = failures.protocol(state.rank, str(problem))
            return False
        except OSError:
            data = b""
        state.closed = state.closed or not data
        return bool(data)

    def _take(self, frame: wire.Frame, state: RankState, channel: socket.socket) -> None:
        if state.over or self._mismatch is not None:
            return
        if frame.kind == "answer":
            state.value = values.decode(frame.header.get("value"), frame.body)
            state.answered = True
        elif frame.kind == "raised":
            state.raised = Raised.read(frame.header)
        elif frame.kind in events.KINDS:
            event = events.decode(frame, state.rank)
            if len(self._events) < MAX_EVENTS:
                self._events.append(event)
            self._mismatch = self._standoff.feed(event)
            if event.kind == "enter" and self._mismatch is None:
                channel.send(GO, socket.MSG_DONTWAIT)
        else:
            raise wire.WireError(f"it sent a frame of an unknown kind, {frame.kind[:40]!r}")

    def _read_output(self, line: socket.socket, state: RankState) -> bool:
        try:
            data = line.recv(2**16)
        except OSError:
            data = b""
        state.output += data[: MAX_OUTPUT - len(state.output)]
        return bool(data)

    def _observation(self, failure: Failure | None, seconds: float) -> Observation:
        for state, lines in zip(self._ranks, self._crew.lines, strict=True):
            while _readable(lines.output) and self._read_output(lines.output, state):
                pass
        return Observation(
            world_size=self._task.world_size,
            values=tuple(state.value for state in self._ranks),
            events=tuple(self._events),
            output=tuple(bytes(s.output).decode(errors="replace") for s in self._ranks),
            seconds=seconds,
            failure=failure,
            answered=tuple(state.rank for state in self._ranks if state.answered),
        )


def observe(task: Task, launcher: Launcher) -> Observation:
    """Run the task on its ranks and return what was seen; nothing of it stays behind."""
    with (
        tempfile.TemporaryDirectory(prefix="gradsync-", ignore_cleanup_errors=True) as directory,
        launcher.crew(task.world_size, directory) as crew,
    ):
        return Run(task, crew, directory).observe()


GO = wire.pack("go")


def _send(channel: socket.socket, data: bytes) -> None:
    try:
        channel.sendall(data)
    except OSError:  # it died at once: its exit code will say why
        return


def _readable(line: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        return bool(selector.select(0))
