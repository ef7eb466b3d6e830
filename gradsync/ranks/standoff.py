"""Trusted, pure: who waits for whom. Proves a deadlock or a mismatch from the streamed events.

Each process group counts its own collectives on each rank; the k-th of one rank meets the k-th of
the others. A rank is blocked while every thread of it that could act waits in a collective. It can
go on if all it waits for have come, or are able to come; what is left after that is stuck, whatever
time passes, and no time limit is needed to say so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from gradsync.ranks import wording
from gradsync.records import Collective, Event, Failure

# A rank may leave these although some member never came: nothing it needs passes through that one.
LOOSE_OPS = {"broadcast", "reduce", "gather", "scatter"}
# Ranks may put tensors of unlike sizes into these.
UNEVEN_OPS = {"all_to_all", "all_to_all_single", "barrier", "monitored_barrier"}
Place = tuple[str, int]  # a group, and the position in its order
Mail = tuple[str, int, int, int]  # a group, from, to, tag


@dataclass
class Call:
    """One collective as one rank entered it."""

    rank: int
    collective: Collective
    place: Place | None = None  # None for a send or recv
    mail: Mail | None = None
    position: int = 0  # among the sends, or recvs, of its mail
    waiting: bool = False


@dataclass
class Standoff:
    """The state of all ranks, event by event."""

    world_size: int
    over: set[int] = field(default_factory=set)
    _calls: dict[tuple[int, int], Call] = field(default_factory=dict)
    _waiting: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))
    _others: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    _order: dict[tuple[str, int], list[Call]] = field(default_factory=lambda: defaultdict(list))
    _sent: dict[Mail, list[Call]] = field(default_factory=lambda: defaultdict(list))
    _received: dict[Mail, list[Call]] = field(default_factory=lambda: defaultdict(list))
    _from_anyone: set[tuple[str, int, int]] = field(default_factory=set)

    def feed(self, event: Event) -> Failure | None:
        """Take one event; return the mismatch, if this rank may not go on with what it entered."""
        self._others[event.rank] = event.others
        if event.collective is not None:
            return self._enter(event.rank, event.call, event.collective)
        call = self._calls.get((event.rank, event.call))
        if call is None:
            return None
        if event.kind == "wait":
            call.waiting = True
            self._waiting[event.rank][event.thread] = call
        else:
            call.waiting = False
            for thread, waited in list(self._waiting[event.rank].items()):
                if waited is call:
                    del self._waiting[event.rank][thread]
        return None

    def blocked(self) -> set[int]:
        """Return the ranks that wait, with every thread that could act."""
        return {
            rank
            for rank in range(self.world_size)
            if rank not in self.over and len(self._waiting[rank]) > self._others[rank]
        }

    def stuck(self) -> set[int]:
        """Return the ranks that can never go on."""
        blocked = self.blocked()
        able = set(range(self.world_size)) - self.over - blocked
        grown = True
        while grown:
            freed = {r for r in blocked - able if self._can_go_on(r, able)}
            grown = bool(freed)
            able |= freed
        return blocked - able

    def certain(self, stuck: set[int]) -> bool:
        """Tell whether some stuck rank waits for one that its collective can't do without."""
        return any(self._lost(call) for rank in stuck for call in self._waiting[rank].values())

    def explain(self, stuck: set[int]) -> Failure:
        """Return the deadlock, told from the collective that was entered first."""
        calls = [call for rank in sorted(stuck) for call in self._waiting[rank].values()]
        first = min(calls, key=lambda c: (c.mail is not None, c.place[1] if c.place else 0))
        missing = self._missing(first)
        waiting = {
            c.rank: c
            for c in calls
            if c is first or (c.place is not None and c.place == first.place)
        }
        return wording.deadlock(
            waiting={rank: call.collective for rank, call in waiting.items()},
            index=first.place[1] + 1 if first.place else first.position + 1,
            missing=missing,
            elsewhere={
                rank: next(iter(self._waiting[rank].values())).collective
                for rank in stuck
                if rank not in waiting
            },
            over=missing & self.over,
        )

    def _enter(self, rank: int, number: int, collective: Collective) -> Failure | None:
        call = Call(rank, collective)
        self._calls[rank, number] = call
        if collective.op in ("send", "recv"):
            return self._post(call)
        members = collective.members or tuple(range(self.world_size))
        group = collective.group if collective.members else collective.op
        order = self._order[group, rank]
        call.place = (group, len(order))
        order.append(call)
        for member in members:
            theirs = self._at(member, call.place)
            if theirs is not None and member != rank:
                mismatch = _mismatch(theirs.collective, collective)
                if mismatch:
                    same = {m: c.collective for m in members if (c := self._at(m, call.place))}
                    return wording.mismatch(mismatch, same, len(order))
        return None

    def _post(self, call: Call) -> Failure | None:
        collective, rank = call.collective, call.rank
        if collective.peer is None:
            self._from_anyone.add((collective.group, rank, collective.tag))
            return None
        sends = collective.op == "send"
        ends = (rank, collective.peer) if sends else (collective.peer, rank)
        call.mail = (collective.group, *ends, collective.tag)
        mine, theirs = (self._sent, self._received) if sends else (self._received, self._sent)
        call.position = len(mine[call.mail])
        mine[call.mail].append(call)
        if call.position < len(theirs[call.mail]):
            other = theirs[call.mail][call.position]
            send, recv = (call, other) if sends else (other, call)
            # A shorter message is fine; one that does not fit aborts the receiver.
            if _numel(send.collective) > _numel(recv.collective):
                same = {send.rank: send.collective, recv.rank: recv.collective}
                return wording.mismatch("shapes", same, call.position + 1)
        return None

    def _at(self, rank: int, place: Place) -> Call | None:
        order = self._order[place[0], rank]
        return order[place[1]] if place[1] < len(order) else None

    def _missing(self, call: Call) -> set[int]:
        """Return the ranks that have yet to come for this call to complete."""
        if call.place is not None:
            members = call.collective.members or tuple(range(self.world_size))
            return {m for m in members if self._at(m, call.place) is None}
        if call.mail is None:
            return set(range(self.world_size)) - {call.rank}
        group, source, target, tag = call.mail
        if call.collective.op == "recv":
            return {source} if len(self._sent[call.mail]) <= call.position else set()
        if (group, target, tag) in self._from_anyone:
            return set()
        return {target} if len(self._received[call.mail]) <= call.position else set()

    def _can_go_on(self, rank: int, able: set[int]) -> bool:
        for call in self._waiting[rank].values():
            missing = self._missing(call)
            from_anyone = call.place is None and call.mail is None
            if missing & able if from_anyone else missing <= able:
                return True
        return False

    def _lost(self, call: Call) -> bool:
        """Tell whether a rank that can't be done without is among the missing."""
        collective = call.collective
        if collective.op in ("reduce", "gather"):
            return collective.root == call.rank
        return collective.op not in LOOSE_OPS or collective.root in self._missing(call)


def _mismatch(one: Collective, other: Collective) -> str | None:
    """Return what two ranks' views of the same collective disagree in."""
    if one.op != other.op:
        return "ops"
    if one.root != other.root:
        return "roots"
    if one.op in UNEVEN_OPS:
        return None
    if (one.dtype, _numel(one)) != (other.dtype, _numel(other)):
        return "shapes"
    return "reductions" if one.reduce != other.reduce else None


def _numel(collective: Collective) -> int:
    return sum(wording.numel(shape) for shape in collective.shapes)
