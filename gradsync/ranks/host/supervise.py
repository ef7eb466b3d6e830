"""Trusted: run a task on its ranks, and supervise them until the outcome is certain.

The loop of `Run` reads the ranks' messages, and permits each collective to start once it matches
the other ranks' calls. It ends the run when all ranks have answered, or one has failed and no other
can continue.
"""

from __future__ import annotations

import functools
import math
import secrets
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gradsync.ranks.deadlocks import explanations
from gradsync.ranks.deadlocks.calls import Call
from gradsync.ranks.deadlocks.detector import DeadlockDetector, LostRanksDetector, Stuck
from gradsync.ranks.deadlocks.doubts import doubts
from gradsync.ranks.failures import endings, exceptions
from gradsync.ranks.failures.exceptions import Raised
from gradsync.ranks.host import stacks
from gradsync.ranks.host.launchers.launcher import (
    START_SECONDS,
    Launcher,
    LauncherError,
    RankProcesses,
)
from gradsync.ranks.host.limits import Deadline, Grace, ProcessorTime, Quiet
from gradsync.ranks.host.rank_state import RankState
from gradsync.ranks.host.schedule import Schedule
from gradsync.ranks.protocol import events, values, wire
from gradsync.ranks.task import Task
from gradsync.records import Event, Failure, Observation
from gradsync.temporary_folders import own_folder

# Events accumulate while the loop rests: reading each one immediately would use the ranks' cores.
REST_SECONDS = 0.001  # added each time that no rank waits for a reply
MAX_REST_SECONDS = 0.005  # a rank that has finished may wait so long for a reply
POLL_SECONDS = 0.05  # between two looks for dead ranks, whose children may keep sockets open
GRACE_SECONDS = 1.0  # for ranks that are still computing when another has failed
SETTLE_SECONDS = 0.4  # for data on its way, where a collective can complete without some rank
EXIT_SECONDS = 1.0  # to wait for the exit code after a rank has closed its socket
EXIT = "SystemExit"
MAX_EVENTS = 200_000  # of a run that are kept; a large event counts as several


def observe(task: Task, launcher: Launcher) -> Observation:
    """Run the task on its ranks and return the observation; leave no processes or files.

    Raises:
        LauncherError: the ranks could not be started, or were lost.
        TypeError: the function or an input can't be sent to a rank.
    """
    with (
        own_folder() as folder,  # after a kill, the warm process or the next grade removes it
        launcher.started(task.world_size, str(folder), (*task.roots, *task.readable)) as processes,
    ):
        schedule = None if task.schedule is None else Schedule(task.schedule, task.world_size)
        kind = LostRanksDetector if task.may_fail else DeadlockDetector
        detector = kind(task.world_size, in_turns=schedule is not None)
        states = [
            RankState(rank, lines, may_be_lost=rank in task.may_fail)
            for rank, lines in enumerate(processes.lines)
        ]
        run = Run(
            processes,
            states,
            detector,
            task.shows,
            task.timeout,
            grace=GRACE_SECONDS if task.debugger is None else math.inf,
            processor_seconds=task.processor_seconds,
            schedule=schedule,
        )
        _hand_out(task, run, states, str(folder))
        seen = run.observe()
        if seen.failure is None and run.saw_all and not task.may_fail:
            seen = replace(seen, warnings=doubts(seen.events))
        return seen


def _hand_out(task: Task, run: Run, states: list[RankState], directory: str) -> None:
    """Send each rank its setup, then the task, which is pickled while the ranks meet."""
    for state in states:
        header = task.header(state.rank, directory, run.began, run.nonce)
        state.send("setup", header, b"", START_SECONDS)
    for state, payload in zip(states, task.payloads(), strict=True):
        state.send("task", {}, payload, START_SECONDS)


class Run:
    """One function, or one cell of a notebook, on N ranks."""

    def __init__(
        self,
        processes: RankProcesses,
        states: Sequence[RankState],
        detector: DeadlockDetector,
        shows: Callable[[str], bool],
        timeout: float = math.inf,
        grace: float = GRACE_SECONDS,
        processor_seconds: float = math.inf,
        schedule: Schedule | None = None,
    ) -> None:
        """Begin to supervise.

        Args:
            processes: the processes.
            states: the state of each rank.
            detector: the collectives that the ranks have entered so far.
            shows: returns whether a message may name a stack frame in a file.
            timeout: the time limit in seconds.
            grace: seconds for the other ranks to continue once one has failed.
            processor_seconds: the limit of processor time for each rank.
            schedule: decides which rank continues next; without one, they run at the same time.
        """
        self._processes = processes
        self._states = states
        self._detector = detector
        self._shows = shows
        self._timeout = timeout
        self._grace_seconds = grace
        self._processor_seconds = processor_seconds
        self._processor_time: ProcessorTime | None = None
        self.began = time.monotonic()
        self.nonce = secrets.token_hex(16)  # an answer from another run is refused
        self._looked = self.began  # when dead ranks were last looked for
        self._schedule = schedule
        self._quiet = Quiet(processes, self.began)
        self._events: list[Event] = []
        self._kept = 0  # the weight of these events
        self._limit: Deadline | None = None  # for the whole run; starts when all ranks are ready
        if all(state.ready for state in states):
            self._limit = Deadline(processes, self.began)
        self._grace: Grace | None = None  # for the others, once a rank has failed
        self._stuck: Stuck = {}
        self._stuck_at = self.began
        self._still: Deadline | None = None  # starts when `_stuck` has not changed for a while
        self._pressing = False  # a rank waits for a reply, or has finished

    def observe(self, each_time: Callable[[], None] = lambda: None) -> Observation:
        """Supervise the ranks until the outcome is certain; call `each_time` after each read."""
        failure, rest = None, 0.0
        with self._lines() as selector:
            while failure is None and not all(m.answered or m.lost for m in self._states):
                time.sleep(rest)
                self._pressing = False
                self._read(selector)
                each_time()
                failure = self._decide(time.monotonic())
                rest = 0.0 if self._pressing else min(rest + REST_SECONDS, MAX_REST_SECONDS)
        return self.so_far(failure)

    @property
    def saw_all(self) -> bool:
        """Whether all events were kept."""
        return self._kept <= MAX_EVENTS

    def await_end(self, seconds: float) -> list[RankState]:
        """Read until every rank is over or the time is up; return the ranks that are not over."""
        deadline = Deadline(self._processes, time.monotonic())
        with self._lines() as selector:
            while late := [state for state in self._states if not state.over]:
                if deadline.over(seconds, time.monotonic()):
                    break
                self._read(selector)
                self._notice_deaths()
        return late

    @contextmanager
    def _lines(self) -> Iterator[selectors.BaseSelector]:
        with selectors.PollSelector() as selector:  # the user's epoll watches may be used up
            for state in self._states:
                read = functools.partial(self._read_frames, state)
                selector.register(state.lines.channel, selectors.EVENT_READ, read)
                selector.register(state.lines.output, selectors.EVENT_READ, state.read_output)
                selector.register(state.lines.stacks, selectors.EVENT_READ, state.read_stacks)
            yield selector

    def _read(self, selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(POLL_SECONDS):
            if not key.data():
                selector.unregister(key.fileobj)

    def _read_frames(self, state: RankState) -> bool:
        """Process a rank's data; return False when no more can arrive."""
        for frame in state.read_frames():
            self._take(frame, state)
        self._pressing = self._pressing or state.is_sending_much
        return not state.closed

    def _take(self, frame: wire.Frame, state: RankState) -> None:
        self._quiet.end(time.monotonic())
        try:
            if frame.kind != "raised" and state.ready == (frame.kind == "ready"):
                raise wire.WireError(f"it sent {frame.kind[:40]!r} at the wrong time")
            if frame.kind == "events":
                asks = frame.header.get("asks") is True
                self._pressing = self._pressing or asks
                for event in state.events.read(frame):
                    self._take_event(event, state, asks=asks)
                return
            self._pressing = True
            if frame.kind == "ready":
                self._take_ready(state)
            elif frame.kind in ("joining", "idle") or (
                frame.kind == "held" and self._schedule is not None
            ):
                state.note(frame)
            elif frame.kind == "answer":
                if frame.header.get("nonce") != self.nonce:
                    raise wire.WireError("its answer does not belong to this run")
                state.value = values.decode(frame.header.get("value"), frame.body)
                state.answered = True
            elif frame.kind == "raised":
                state.raised = Raised.read(frame.header)
            else:
                raise wire.WireError(f"it sent a frame of the unknown kind {frame.kind[:40]!r}")
        except wire.WireError as problem:
            state.breaks(str(problem))

    def _take_ready(self, state: RankState) -> None:
        """Start all ranks together: one that exits early would break the start of slower ones."""
        if state.ready:
            raise wire.WireError("it reported twice that it is ready")
        state.ready = True
        if self._limit is None and all(other.ready for other in self._states):
            for other in self._states:
                other.go()
            self._limit = Deadline(self._processes, time.monotonic())
            self._processor_time = ProcessorTime(self._processes, self._processor_seconds)

    def _take_event(self, event: Event, state: RankState, *, asks: bool) -> None:
        self._kept += events.weight(event)
        if self._kept <= MAX_EVENTS:
            self._events.append(event)
        else:
            event = events.light(event)
        counts = self._detector.count_open(state.rank), self._detector.count_posted(state.rank)
        if event.collective is not None and endings.too_many(*counts):
            state.broken = endings.endless_calls(state.rank, *counts, event.collective)
            return
        if self._detector.feed(event) and event.kind == "enter" and asks:
            state.go()

    def _decide(self, now: float) -> Failure | None:
        """Return the failure once it is certain, or None while the run may still succeed."""
        if now - self._looked > POLL_SECONDS:
            self._looked = now
            self._notice_deaths()
            self._let_survivors_end()
        live = {state.rank for state in self._states if not state.over}
        acting = {rank for rank in live if not self._states[rank].idle}
        self._detector.over = set(range(len(self._states))) - acting
        self._take_turns(live, now)
        stuck = self._detector.likely()
        if stuck != self._stuck:
            self._stuck, self._stuck_at = stuck, now
            self._still = None
        if any(state.failed for state in self._states):
            self._grace = self._grace or Grace(self._processes, now, self._grace_seconds)
            over = self._grace.over(now, all_wait=acting <= self._detector.blocked())
            certain = over or acting <= stuck.keys() or any(m.broken for m in self._states)
            return self._failed() if certain else None
        if not live:
            conflicts = self._detector.conflicts()
            return explanations.mismatch(conflicts[0]) if conflicts else None
        if stuck and (proof := self._proof(stuck, acting, now)):
            graph = explanations.wait_graph(self._detector, len(self._states))
            return replace(explanations.explain(self._detector, proof), graph=graph)
        return self._late(live, now)

    def _take_turns(self, live: set[int], now: float) -> None:
        """Let the next rank of the schedule continue, once every other rank waits.

        So only one call can start at a time. A rank that has left a collective which others have
        not entered yet has its next turn after them: on a busy machine, it would still be in it.
        Some waits can't be attributed, such as those for a file or a lock: a rank may be in one of
        them if it reports nothing for a while and does not compute either.
        """
        held = {
            state.rank: state.held for state in self._states if state.held and state.rank in live
        }
        if self._schedule is None or not held:
            return
        others = live - held.keys()
        ahead = self._detector.ahead()
        ready = {rank: at for rank, at in held.items() if rank not in ahead}
        if not (ready and others <= self._detector.likely(without=held.keys()).keys()):
            if not self._quiet.over(now, others, all_wait=others <= self._detector.blocked()):
                return
            ready = ready or held
        first = self._schedule.first(ready)
        self._states[first].take_turn(self._detector.started(first))
        self._quiet.end(now)

    def _proof(self, stuck: Stuck, live: set[int], now: float) -> Stuck | None:
        """Return the ranks that certainly can't continue, once no other rank can change this."""
        proof = self._detector.proved()
        if live == proof.keys():
            return proof
        if now - self._stuck_at > POLL_SECONDS and self._still is None:
            self._still = Deadline(self._processes, now)
        if self._still is None:
            return None
        if self._still.over(SETTLE_SECONDS, now):
            proof = stuck
        certain = proof and (live == proof.keys() or self._still.over(GRACE_SECONDS, now))
        return proof if certain else None

    def _failed(self) -> Failure:
        return _first_failure(self._states, self._processes, self._detector, self._shows)

    def _notice_deaths(self) -> None:
        """Mark ranks whose process has ended as closed, even if a child keeps sockets open."""
        for rank, code in self._processes.exit_codes().items():
            state = self._states[rank]
            if state.exit_code is None:
                state.exit_code = code
            elif not state.over:  # it was already dead at the last look: all its data has been read
                state.closed = True

    def _let_survivors_end(self) -> None:
        """Once a rank is lost, make finished ranks exit, as they would in an ordinary run.

        This closes their connections, so ranks without a connection to the lost one notice it too.
        """
        if any(state.lost for state in self._states):
            for state in [state for state in self._states if state.over]:
                state.dismiss()

    def _late(self, live: set[int], now: float) -> Failure | None:
        """Return a timeout failure once the time limit is reached."""
        if self._limit is None:
            if now - self.began > START_SECONDS:
                raise LauncherError(f"the ranks did not start within {START_SECONDS:g} s")
            return None
        looped = self._processor_time is not None and self._processor_time.over(now)
        if not looped and not self._limit.over(self._timeout, now):
            return None
        used = self._processor_time.used() if self._processor_time else {}
        places, waits = self._places(live)
        lost = [state.rank for state in self._states if state.lost]
        limit = f"{self._timeout:g} s"
        if looped:
            limit = f"{self._processor_seconds:g} s of processor time"
        joining = {s.rank: s.joining for s in self._states if s.rank in places and s.joining}
        late = endings.timeout(limit, places, waits, lost, used, joining)
        if stuck := self._detector.at_last():
            return endings.late(explanations.explain(self._detector, stuck), late)
        return late

    def failed(self) -> Failure | None:
        """Return the failure of a rank, even if other ranks can continue."""
        return self._failed() if any(state.failed for state in self._states) else None

    def running(self) -> list[int]:
        """Return the ranks that neither are over nor wait for another rank."""
        live = {state.rank for state in self._states if not state.over}
        return sorted(live - self._detector.waits().keys())

    def at_work(self) -> str:
        """Describe where the ranks that are not over are running or waiting."""
        live = {state.rank for state in self._states if not state.over}
        return " ".join(endings.busy_texts(*self._places(live)))

    def _places(self, live: set[int]) -> tuple[dict[int, str | None], list[Call]]:
        """Return the line of each running rank, and the calls in which the others wait."""
        waits = self._detector.waits()
        busy = live - waits.keys() or live
        return stacks.now(self._processes, busy, self._shows), list(waits.values())

    def so_far(self, failure: Failure | None = None) -> Observation:
        """Return what has been observed so far."""
        return Observation(
            world_size=len(self._states),
            values=tuple(state.value for state in self._states),
            events=tuple(self._events),
            output=tuple(state.read_last_output() for state in self._states),
            seconds=time.monotonic() - self.began,
            failure=failure,
            answered=tuple(state.rank for state in self._states if state.answered),
        )


def _first_failure(
    states: Sequence[RankState],
    processes: RankProcesses,
    detector: DeadlockDetector,
    shows: Callable[[str], bool],
) -> Failure:
    """Return the failure of the rank that failed first, not of ranks that failed because of it."""
    if excess := processes.excess():
        return _explain_excess(states, excess, shows)
    for state in states:
        if state.broken is not None:
            return state.broken
    conflicts = detector.conflicts()
    conflicting = {rank for operation in conflicts for rank in operation.calls}
    for state in states:
        if state.failed and state.raised is None and state.rank not in conflicting:
            return _explain_end(state, processes, shows)
    errors = {m.rank: m.raised for m in states if m.raised is not None}
    culprits = {
        rank: error
        for rank, error in errors.items()
        if not error.in_collective and rank not in conflicting
    }
    if conflicts and not culprits:
        return explanations.mismatch(conflicts[0])
    exits = all(error.type == EXIT for error in culprits.values())  # of programs that catch errors
    if exits and (abandoned := detector.abandoned(errors)):
        return explanations.deadlock(detector, abandoned)
    return exceptions.first_of(culprits or errors)


def _explain_end(
    state: RankState, processes: RankProcesses, shows: Callable[[str], bool]
) -> Failure:
    """Return the failure of a rank whose process ended, or stopped responding, without an answer.

    Raises:
        LauncherError: it ended before it received its task.
    """
    until = time.monotonic() + EXIT_SECONDS
    while state.exit_code is None and time.monotonic() < until:
        state.exit_code = processes.exit_codes().get(state.rank)
        time.sleep(0.002)
    if not state.ready:
        raise LauncherError(
            f"rank {state.rank} ended before its task began (exit status {state.exit_code}): "
            f"{state.read_last_output().strip()[-2000:] or 'it printed nothing'}"
        )
    written = state.read_last_stacks()
    where, endless = stacks.user_line(written, shows), stacks.endless_call(written, shows)
    return endings.left(state.rank, state.exit_code, where, endless)


def _explain_excess(
    states: Sequence[RankState], excess: tuple[str, str], shows: Callable[[str], bool]
) -> Failure:
    """Return the failure of ranks that exceeded a limit; look for an endless recursion."""
    code, text = excess
    for state in states:
        written = state.read_last_stacks()
        if code == "out-of-memory" and (name := stacks.endless_call(written, shows)):
            where = stacks.user_line(written, shows)
            return endings.endless_call(state.rank, name, text, where)
    return endings.took_too_much(range(len(states)), code, text)
