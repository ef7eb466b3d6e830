"""Trusted: the loop that watches the ranks of one run until it is decided.

It reads what the ranks send, lets each collective start when it fits those of the others,
and ends the run as soon as all ranks have answered, or one has failed and no other can go on.
"""

from __future__ import annotations

import functools
import math
import secrets
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gradsync.ranks import events, exceptions, failures, postmortem, stacks, values, wire, wording
from gradsync.ranks.crew import Crew, LauncherError
from gradsync.ranks.exceptions import Raised
from gradsync.ranks.member import Member
from gradsync.ranks.patience import Grace, Patience, ProcessorTime
from gradsync.ranks.standoff import Call, Standoff, Stuck
from gradsync.records import Event, Failure, Observation

# Events gather while we rest: who reads each at once takes the ranks' cores away.
REST_SECONDS = 0.001  # more each time that no rank waited for us
MAX_REST_SECONDS = 0.005  # a rank that has come to its end may be kept waiting for as long
POLL_SECONDS = 0.05  # how soon the death of a rank is seen whose children hold its sockets open
START_SECONDS = 120.0  # for ranks to import torch, from a cold disk, and to meet
GRACE_SECONDS = 1.0  # for ranks that still compute when another has failed
SETTLE_SECONDS = 0.4  # for data already on its way, where a collective can do without some rank
MAX_EVENTS = 200_000  # kept of a run, of which one that says much counts as many


class Run:
    """One function, or one cell of a notebook, on N ranks."""

    def __init__(
        self,
        crew: Crew,
        members: Sequence[Member],
        standoff: Standoff,
        shows: Callable[[str], bool],
        timeout: float = math.inf,
        grace: float = GRACE_SECONDS,
        processor_seconds: float = math.inf,
    ) -> None:
        """Begin to supervise.

        Args:
            crew: the processes.
            members: what is known of each rank.
            standoff: what the ranks have entered before.
            shows: tells whether a rank's stack frame in a file is worth naming.
            timeout: seconds after which ranks that still run are late.
            grace: seconds that the other ranks may compute on once one has failed.
            processor_seconds: that each rank may use before it is late, too.
        """
        self._crew = crew
        self._members = members
        self._standoff = standoff
        self._shows = shows
        self._timeout = timeout
        self._grace_seconds = grace
        self._processor_seconds = processor_seconds
        self._processor_time: ProcessorTime | None = None
        self.began = time.monotonic()
        self.nonce = secrets.token_hex(16)  # the answer of another run can't serve this one
        self._looked = self.began  # for deaths
        self._events: list[Event] = []
        self._kept = 0  # how much that is
        self._limit: Patience | None = None  # for the whole run, once all ranks are ready
        if all(member.ready for member in members):
            self._limit = Patience(crew, self.began)
        self._grace: Grace | None = None  # for the others, once a rank has failed
        self._stuck: Stuck = {}
        self._stuck_at = self.began
        self._still: Patience | None = None  # since the same ranks look stuck, after a moment
        self._pressing = False  # a rank waits for an answer, or has come to its end

    def observe(self, each_time: Callable[[], None] = lambda: None) -> Observation:
        """Watch the ranks until the run is decided; call `each_time` after each look at them."""
        failure, rest = None, 0.0
        with self._lines() as selector:
            while failure is None and not all(m.answered or m.lost for m in self._members):
                time.sleep(rest)
                self._pressing = False
                self._read(selector)
                each_time()
                failure = self._decide(time.monotonic())
                rest = 0.0 if self._pressing else min(rest + REST_SECONDS, MAX_REST_SECONDS)
        return self.so_far(failure)

    def await_end(self, seconds: float) -> list[Member]:
        """Read on until every rank is over or the time is up; return those that are not over."""
        until = time.monotonic() + seconds
        with self._lines() as selector:
            while (late := [m for m in self._members if not m.over]) and time.monotonic() < until:
                self._read(selector)
                self._notice_deaths()
        return late

    @contextmanager
    def _lines(self) -> Iterator[selectors.BaseSelector]:
        with selectors.PollSelector() as selector:  # a user's watches of epoll can be used up
            for member in self._members:
                hear = functools.partial(self._hear, member)
                selector.register(member.lines.channel, selectors.EVENT_READ, hear)
                selector.register(member.lines.output, selectors.EVENT_READ, member.hear_output)
                selector.register(member.lines.stacks, selectors.EVENT_READ, member.hear_stacks)
            yield selector

    def _read(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(POLL_SECONDS):
            if not key.data():
                selector.unregister(key.fileobj)

    def _hear(self, member: Member) -> bool:
        """Take what a rank sent; False when nothing more can come."""
        for frame in member.hear():
            self._take(frame, member)
        return not member.closed

    def _take(self, frame: wire.Frame, member: Member) -> None:
        try:
            if frame.kind != "raised" and member.ready == (frame.kind == "ready"):
                raise wire.WireError(f"it sent {frame.kind[:40]!r} out of turn")
            if frame.kind == "events":
                asks = frame.header.get("asks") is True
                self._pressing = self._pressing or asks
                for event in member.events.read(frame):
                    self._take_event(event, member, asks=asks)
                return
            self._pressing = True
            if frame.kind == "ready":
                self._take_ready(member)
            elif frame.kind == "answer":
                if frame.header.get("nonce") != self.nonce:
                    raise wire.WireError("it sent an answer that is not to this run's question")
                member.value = values.decode(frame.header.get("value"), frame.body)
                member.answered = True
            elif frame.kind == "raised":
                member.raised = Raised.read(frame.header)
            else:
                raise wire.WireError(f"it sent a frame of an unknown kind, {frame.kind[:40]!r}")
        except wire.WireError as problem:
            member.breaks(str(problem))

    def _take_ready(self, member: Member) -> None:
        """Let the ranks begin together: who leaves early breaks the start of slower ones."""
        if member.ready:
            raise wire.WireError("it said once more that it is ready")
        member.ready = True
        if self._limit is None and all(other.ready for other in self._members):
            for other in self._members:
                other.go()
            self._limit = Patience(self._crew, time.monotonic())
            self._processor_time = ProcessorTime(self._crew, self._processor_seconds)

    def _take_event(self, event: Event, member: Member, *, asks: bool) -> None:
        self._kept += events.weight(event)
        if self._kept <= MAX_EVENTS:
            self._events.append(event)
        else:
            event = events.light(event)
        counts = self._standoff.count_open(member.rank), self._standoff.count_posted(member.rank)
        if event.collective is not None and failures.too_many(*counts):
            member.broken = failures.endless_calls(member.rank, *counts, event.collective)
            return
        if self._standoff.feed(event) and event.kind == "enter" and asks:
            member.go()

    def _decide(self, now: float) -> Failure | None:
        """Return the failure once it is certain, None while the run may still succeed."""
        if now - self._looked > POLL_SECONDS:
            self._looked = now
            self._notice_deaths()
            self._let_survivors_end()
        live = {member.rank for member in self._members if not member.over}
        self._standoff.over = set(range(len(self._members))) - live
        stuck = self._standoff.likely()
        if stuck != self._stuck:
            self._stuck, self._stuck_at = stuck, now
            self._still = None
        if any(member.failed for member in self._members):
            self._grace = self._grace or Grace(self._crew, now, self._grace_seconds)
            over = self._grace.over(now, all_wait=live <= self._standoff.blocked())
            certain = over or live <= stuck.keys() or any(m.broken for m in self._members)
            return self._failed() if certain else None
        if not live:
            conflicts = self._standoff.conflicts()
            return wording.mismatch(conflicts[0]) if conflicts else None
        if stuck and (proof := self._proof(stuck, live, now)):
            return wording.explain(self._standoff, proof)
        return self._late(live, now)

    def _proof(self, stuck: Stuck, live: set[int], now: float) -> Stuck | None:
        """Return the ranks that can't go on for certain, once nobody else will tell us more."""
        proof = self._standoff.proved()
        if live == proof.keys():
            return proof
        if now - self._stuck_at > POLL_SECONDS and self._still is None:
            self._still = Patience(self._crew, now)
        if self._still is None:
            return None
        if self._still.over(SETTLE_SECONDS, now):
            proof = stuck
        certain = proof and (live == proof.keys() or self._still.over(GRACE_SECONDS, now))
        return proof if certain else None

    def _failed(self) -> Failure:
        """Return what a rank did that failed of itself, not because another did."""
        if excess := self._crew.excess():
            return postmortem.took_too_much(self._members, excess, self._shows)
        for member in self._members:
            if member.broken is not None:
                return member.broken
        conflicts = self._standoff.conflicts()
        torn = {rank for meeting in conflicts for rank in meeting.calls}
        for member in self._members:
            if member.failed and member.raised is None and member.rank not in torn:
                return postmortem.left(member, self._crew, self._shows)
        errors = {m.rank: m.raised for m in self._members if m.raised is not None}
        culprits = {
            rank: error
            for rank, error in errors.items()
            if not error.in_collective and rank not in torn
        }
        if conflicts and not culprits:
            return wording.mismatch(conflicts[0])
        told = culprits or errors
        first = next(iter(told.values()))
        return exceptions.raised(first, tuple(r for r, error in told.items() if error.alike(first)))

    def _notice_deaths(self) -> None:
        """Close the books on ranks that have ended, though a child may hold their sockets open."""
        for rank, code in self._crew.exit_codes().items():
            member = self._members[rank]
            if member.exit_code is None:
                member.exit_code = code
            elif not member.over:  # seen dead a while ago: all that it sent has been read
                member.closed = True

    def _let_survivors_end(self) -> None:
        """Once a rank is lost, let those that are done go, as they would without us.

        Their end breaks their connections, and so tells ranks that have none to the lost one.
        """
        if any(member.lost for member in self._members):
            for member in [member for member in self._members if member.over]:
                member.dismiss()

    def _late(self, live: set[int], now: float) -> Failure | None:
        """Return what the ranks were at when their time was up."""
        if self._limit is None:
            if now - self.began > START_SECONDS:
                raise LauncherError(f"the ranks did not start within {START_SECONDS:g} s")
            return None
        looped = self._processor_time is not None and self._processor_time.over(now)
        if not looped and not self._limit.over(self._timeout, now):
            return None
        used = self._processor_time.used() if self._processor_time else {}
        places, waits = self._places(live)
        lost = [member.rank for member in self._members if member.lost]
        limit = f"{self._timeout:g} s"
        if looped:
            limit = f"{self._processor_seconds:g} s of processor time"
        late = failures.timeout(limit, places, waits, lost, used)
        if stuck := self._standoff.at_last():
            return failures.late(wording.explain(self._standoff, stuck), late)
        return late

    def failed(self) -> Failure | None:
        """Return the failure of a rank, though others may go on."""
        return self._failed() if any(member.failed for member in self._members) else None

    def at_work(self) -> str:
        """Return what the ranks that are not over are at, and wait in."""
        live = {member.rank for member in self._members if not member.over}
        return "; ".join(failures.busy_texts(*self._places(live)))

    def _places(self, live: set[int]) -> tuple[dict[int, str | None], list[Call]]:
        """Return the line that each busy rank is at, and the calls that the others wait in."""
        waits = self._standoff.waits()
        busy = live - waits.keys() or live
        return stacks.now(self._crew, busy, self._shows), list(waits.values())

    def so_far(self, failure: Failure | None = None) -> Observation:
        """Return what has been seen."""
        return Observation(
            world_size=len(self._members),
            values=tuple(member.value for member in self._members),
            events=tuple(self._events),
            output=tuple(member.hear_last_output() for member in self._members),
            seconds=time.monotonic() - self.began,
            failure=failure,
            answered=tuple(member.rank for member in self._members if member.answered),
        )
