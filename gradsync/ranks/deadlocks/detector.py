"""Trusted, pure: prove deadlocks and mismatches from the events that ranks report.

Each process group counts its collectives on each rank. The k-th collective of one rank belongs to
the k-th of the others, and a send to its recv; such calls are one operation. A rank is blocked
while all its threads that could act are waiting. It can continue if every rank it waits for has
arrived, or can arrive. All other blocked ranks are stuck, so no time limit is needed to find a
deadlock.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Set
from dataclasses import replace

from gradsync.ranks.deadlocks.calls import (
    STORE,
    Call,
    Mail,
    Operation,
    disagreement,
    groups_differ,
    misfit,
    numel,
)
from gradsync.ranks.protocol.events import LOOSE_OPS, MAIN_THREAD
from gradsync.records import Collective, Event

# These collectives do not wait if the tensors are empty.
SKIPPED_WHEN_EMPTY = {
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor",
    "all_gather_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter",
    "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
}  # fmt: skip
ENDS_GROUPS = "destroy_process_group"  # waits for all collectives that its rank has started
MAX_LINES = 10_000  # of each rank's calls that are counted
MAX_UNMET = 16  # so many calls of a rank are stored that it left before others arrived
MAX_THREADS = 1024  # the waits of at most so many threads of a rank are stored

Stuck = dict[int, list[Call]]  # rank -> the calls in which its threads wait


class DeadlockDetector:
    """The state of all ranks, updated with each event."""

    def __init__(self, world_size: int, *, in_turns: bool = False) -> None:
        """Start without calls; with `in_turns`, they reach other ranks in the order of events."""
        self._in_turns = in_turns
        self._messages: list[Call] = []  # in turns: sends and receives without a counterpart
        self.over: set[int] = set()  # ranks that will enter no more collectives
        self.idle: set[int] = set()  # those of them that do not run the current cell
        self.left: dict[int, Call] = {}  # ranks that have ended their groups, and how
        # rank -> the calls that it left though other ranks had not arrived, as after an error
        self._unmet: dict[int, deque[Call]] = defaultdict(deque)
        self._everyone = frozenset(range(world_size))
        self._calls: dict[tuple[int, int], Call] = {}  # (rank, number) -> call that is not complete
        self._open: Counter[int] = Counter()  # rank -> number of these
        self._waiting: dict[int, dict[int, Call]] = defaultdict(dict)  # rank -> thread -> call
        self._others: Counter[int] = Counter()
        self._positions: Counter[tuple[object, ...]] = Counter()
        self._numbers: Counter[tuple[object, ...]] = Counter()  # the same, only of this cell
        self._operations: dict[tuple[str, int], Operation] = {}  # incomplete ones
        self._mail: dict[Mail, deque[Operation]] = defaultdict(deque)  # only one side has posted
        self._posted: Counter[int] = Counter()  # rank that posted -> number of these
        self._from_anyone: set[tuple[str, int, int]] = set()  # group, receiver, tag
        self._conflicts: list[Operation] = []
        # Ranks that may start no more calls: permissions do not say to which thread they belong.
        self._refused: set[int] = set()
        self._threads: dict[tuple[int, str], set[int]] = defaultdict(set)  # rank, group -> threads
        self._lines: Counter[tuple[object, ...]] = Counter()  # rank, operation, line -> calls
        # Lines that a rank reached after an exception: if it does so again, that is on purpose.
        self._handlers: set[tuple[object, ...]] = set()
        self.subgroups: dict[tuple[int, ...], None] = {}  # as passed to new_group
        # (rank, operation) -> its last call in a group without some of the ranks
        self.in_subgroup: dict[tuple[int, str], Collective] = {}

    def feed(self, event: Event) -> bool:
        """Process an event; return False if the rank may not start this call: it does not match."""
        rank = event.rank
        self._others[rank] = event.others
        waiting = self._waiting[rank]
        if event.collective is not None:
            return self._begin(event, event.collective)
        entered = self._calls.get((rank, event.call))
        if entered is None:
            return True
        if event.kind == "wait":
            if len(waiting) < MAX_THREADS:
                waiting[event.thread] = entered
        elif event.kind == "go_on":
            waiting.pop(event.thread, None)
        else:
            entered.left = True
            self._note_unmet(rank, entered)
            if entered.collective.op == ENDS_GROUPS:
                self.left[rank] = entered
            del self._calls[rank, event.call]
            self._open[rank] -= 1
            for thread in [thread for thread, call in waiting.items() if call is entered]:
                del waiting[thread]
        return True

    def _begin(self, event: Event, collective: Collective) -> bool:
        rank = event.rank
        collective = self._without_routine_exception(rank, collective)
        call = self._enter(rank, collective)
        self._count(event, collective)
        self._calls[rank, event.call] = call
        self._open[rank] += 1
        if call.operation.conflict is not None:
            self._refused.add(rank)
            if call.operation not in self._conflicts:
                self._conflicts.append(call.operation)
        if rank in self._refused:
            self._waiting[rank][event.thread] = call  # it blocks or fails
        return rank not in self._refused

    def _without_routine_exception(self, rank: int, collective: Collective) -> Collective:
        """Return a call without its exception, if the rank has reached its line so before."""
        if not collective.after:
            return collective
        line = (rank, collective.op, collective.where)
        if line in self._handlers:
            return replace(collective, after=None)
        if len(self._handlers) < MAX_LINES:
            self._handlers.add(line)
        return collective

    def _note_unmet(self, rank: int, call: Call) -> None:
        unmet = self._unmet[rank]
        while unmet and not _needed(unmet[0], self.missing(unmet[0])):  # its event came later
            unmet.popleft()
        if len(unmet) < MAX_UNMET and _needed(call, self.missing(call)):
            unmet.append(call)

    def calls_at(self, rank: int, collective: Collective) -> int:
        """Return how often a rank has called this operation at this line."""
        return self._lines[rank, collective.op, collective.where]

    def _count(self, event: Event, collective: Collective) -> None:
        threads = self._threads[event.rank, collective.group]
        if len(threads) < MAX_THREADS:
            threads.add(event.thread)
        if len(self._lines) < MAX_LINES:
            if 1 < len(collective.members) < len(self._everyone):
                self.in_subgroup[event.rank, collective.op] = collective
            self._lines[event.rank, collective.op, collective.where] += 1
        if collective.ranks and collective.op == "new_group" and len(self.subgroups) < MAX_LINES:
            self.subgroups[collective.ranks] = None

    def _describe(self, operation: Operation) -> None:
        """Add to a conflict what may have caused it."""
        operation.subgroups = tuple(self.subgroups)
        used = {r: self._threads[r, call.collective.group] for r, call in operation.calls.items()}
        helped = {rank for rank, threads in used.items() if threads != {MAIN_THREAD}}
        several = {rank for rank, threads in used.items() if len(threads) > 1}
        operation.threaded = tuple(sorted(several or (helped if helped != set(used) else ())))

    def renumber(self) -> None:
        """Count collectives from 1 again for a new cell; incomplete ones are of earlier cells."""
        self._numbers.clear()
        self._refused.clear()
        for call in self._calls.values():
            call.number = 0
        anyone = [call for call in self._calls.values() if call.from_anyone]
        self._from_anyone = {_address(call) for call in anyone}
        for mail, operations in list(self._mail.items()):
            taken = [m for m in operations if all(call.left for call in m.calls.values())]
            for operation in taken:  # by a recv from any rank
                operations.remove(operation)
                self._posted.subtract(list(operation.calls))
            if not operations:
                del self._mail[mail]

    def count_open(self, rank: int) -> int:
        """Return how many collectives of a rank are incomplete."""
        return self._open[rank]

    def count_posted(self, rank: int) -> int:
        """Return how many sends and receives of a rank have no counterpart yet."""
        return self._posted[rank]

    def proved(self) -> Stuck:
        """Return the ranks that can never continue."""
        return self._stuck(self._blocked(), sure=True)

    def likely(self, without: Set[int] = frozenset()) -> Stuck:
        """Return the ranks that can't continue, unless the data they need is on its way.

        Ranks in `without` count as if they never continued. They may have set a key of a store.
        """
        blocked = self._blocked()
        if without:
            asks = {r for r, calls in blocked.items() if any(call.sets_key for call in calls)}
            blocked = {rank: calls for rank, calls in blocked.items() if rank not in asks}
        return self._stuck(blocked, sure=False, without=without)

    def ahead(self) -> set[int]:
        """Return the ranks that have left a collective before all others have entered it."""
        calls = (
            call for operation in self._operations.values() for call in operation.calls.values()
        )
        return {call.rank for call in calls if call.left}

    def started(self, rank: int) -> list[int]:
        """Return the open calls of a rank that all ranks which they need have started."""
        return [
            number
            for (caller, number), call in self._calls.items()
            if caller == rank and not call.pending and not call.sets_key
            if not self.missing(call) and call.operation.conflict is None
        ]

    def abandoned(self, ranks: Iterable[int]) -> Stuck:
        """Return those of these ranks that left a call which needed ranks that are gone."""
        return {
            rank: calls[:1]
            for rank in ranks
            if (calls := [call for call in self._unmet[rank] if self.missing(call) & self.gone])
        }

    @property
    def gone(self) -> set[int]:
        """The ranks that enter no more collectives of the groups in which others wait."""
        return self.over | self.left.keys()

    def at_last(self) -> Stuck:
        """Return the ranks that look stuck when the time limit is reached.

        These include ranks that poll for a call that a returned rank never made, and ranks with a
        waiting thread, whatever their other threads do.
        """
        held = {rank: list(threads.values()) for rank, threads in self._waiting.items() if threads}
        for (rank, _), call in self._calls.items():
            if not self._waiting[rank] and self.missing(call) & self.gone:
                held.setdefault(rank, []).append(call)
        live = {rank: held[rank] for rank in sorted(held) if rank not in self.over}
        return self._stuck(live, sure=False)

    def waits(self) -> dict[int, Call]:
        """Return the ranks that wait for others now, with their calls."""
        blocked = self._blocked().items()
        return {
            rank: calls[0]
            for rank, calls in blocked
            if all(self.missing(call) or call.operation.conflict for call in calls)
        }

    def missing(self, call: Call) -> set[int]:
        """Return the ranks that must still arrive for this call to complete."""
        if call.pending:
            return set().union(*map(self.missing, call.pending))
        if call.from_anyone or call.mail is None or call.collective.op == "recv":
            return call.elsewhere
        group, _, target, tag = call.mail
        return set() if (group, target, tag) in self._from_anyone else call.elsewhere

    def waits_for_anyone(self) -> list[Call]:
        """Return the calls in which a thread waits for a message from any rank."""
        threads = [call for held in self._waiting.values() for call in held.values()]
        return [call for call in threads if call.from_anyone]

    def conflicts(self) -> list[Operation]:
        """Return the operations whose calls do not match, in the order of their groups."""
        for operation in self._conflicts:
            self._describe(operation)
        return sorted(self._conflicts, key=lambda operation: operation.position)

    def blocked(self) -> set[int]:
        return set(self._blocked())

    def _blocked(self) -> Stuck:
        return {
            rank: list(threads.values())
            for rank, threads in sorted(self._waiting.items())
            if threads and len(threads) > self._others[rank] and rank not in self.over
        }

    def _stuck(self, blocked: Stuck, *, sure: bool, without: Set[int] = frozenset()) -> Stuck:
        able = set(self._everyone.difference(self.gone, blocked, without))
        freed = list(blocked)
        while blocked and freed:
            freed = [
                rank
                for rank, calls in blocked.items()
                if any(self._can_go_on(call, able, sure=sure) for call in calls)
            ]
            able.update(freed)
            blocked = {rank: calls for rank, calls in blocked.items() if rank not in able}
        return blocked

    def _can_go_on(self, call: Call, able: set[int], *, sure: bool) -> bool:
        if call.operation.conflict is not None:
            return False
        if call.pending:  # to be sure, assume that it returns: another rank may close connections
            return sure or all(self._can_go_on(p, able, sure=False) for p in call.pending)
        missing = self.missing(call)
        if call.sets_key:  # to be sure, assume that the key was set just now
            return sure or not missing.isdisjoint(able)
        if call.from_anyone:
            return self._has_mail(call, sure=sure) or not missing.isdisjoint(able)
        collective = call.collective
        if collective.op in SKIPPED_WHEN_EMPTY and not numel(collective):
            return True
        return (_needed(call, missing) if sure else missing) <= able

    def _has_mail(self, call: Call, *, sure: bool) -> bool:
        """Return whether a send is posted that a recv from any rank would receive.

        A complete send was usually received by an earlier recv. But this recv may be receiving it
        now, so it counts if the result must be `sure`.
        """
        group, tag = call.collective.group, call.collective.tag
        posted = (
            operation.calls[peer]
            for peer in self._everyone
            for operation in self._mail.get((group, peer, call.rank, tag), ())
            if peer in operation.calls
        )
        return any(sure or not send.left for send in posted)

    def _enter(self, rank: int, collective: Collective) -> Call:
        if collective.op in ("send", "recv"):
            return self._post(rank, collective)
        if collective.op == "init_process_group":
            self.left.pop(rank, None)
        if collective.op == ENDS_GROUPS:
            pending = tuple(call for (r, _), call in self._calls.items() if r == rank)
            operation = Operation(0)
            call = Call(rank, collective, frozenset([rank]), operation, pending=pending)
            operation.calls[rank] = call
            return call
        expected = frozenset(collective.members) or self._everyone
        if collective.op == STORE:
            operation = Operation(*self._next(collective.group, rank)[:1])
            call = Call(rank, collective, expected, operation, operation.position + 1)
            operation.calls[rank] = call
            return call
        position, number = self._next(collective.group, rank)
        key = (collective.group, position)
        operation = self._operations.setdefault(key, Operation(position))
        call = Call(rank, collective, expected, operation, number)
        operation.calls[rank] = call
        first = next(iter(operation.calls.values())).collective
        operation.conflict = operation.conflict or disagreement([first, collective])
        if collective.sends and misfit(call, operation.calls.values()):
            operation.conflict = operation.conflict or "exchanges"
        if collective.ranks and groups_differ(call, operation.calls.values()):
            operation.conflict = operation.conflict or "lists"
        if not call.elsewhere:
            del self._operations[key]
        return call

    def _post(self, rank: int, collective: Collective) -> Call:
        group, peer, tag = collective.group, collective.peer, collective.tag
        position, number = self._next(group, rank, collective.op, peer, tag)
        # Their ends may already be reported: the events of two ranks arrive in any order.
        self._messages = [call for call in self._messages if call.elsewhere]
        if peer is None and self._in_turns:
            peer = self._first_sender(rank, collective)
        if peer is None:
            everyone = frozenset(collective.members) or self._everyone
            operation = Operation(position)
            call = Call(rank, collective, everyone, operation, number, from_anyone=True)
            if self._in_turns:
                self._messages.append(call)
            else:
                self._from_anyone.add(_address(call))
            operation.calls[rank] = call
            return call
        ends = (rank, peer) if collective.op == "send" else (peer, rank)
        mail = (group, *ends, tag)
        open_ = self._mail[mail]
        if open_ and rank not in open_[0].calls:
            operation = open_.popleft()
            self._posted[peer] -= 1
        elif collective.op == "send" and (receive := self._receiver(mail)) is not None:
            receive.from_anyone, receive.expected = False, frozenset(ends)
            operation = receive.operation
        else:
            operation = Operation(position)
            open_.append(operation)
            self._posted[rank] += 1
        if not open_:
            del self._mail[mail]
        call = Call(rank, collective, frozenset(ends), operation, number, mail)
        operation.calls[rank] = call
        if (group, ends[1], tag) not in self._from_anyone:  # otherwise the pairs are unknown
            operation.conflict = disagreement([c.collective for c in operation.calls.values()])
        if self._in_turns:
            self._messages.append(call)
        return call

    def _first_sender(self, rank: int, collective: Collective) -> int | None:
        """Return the rank whose message arrived first of those that this recv could receive."""
        place = collective.group, rank, collective.tag
        sends = (call.mail for call in self._messages if call.collective.op == "send" and call.mail)
        return next((m[1] for m in sends if (m[0], m[2], m[3]) == place), None)

    def _receiver(self, mail: Mail) -> Call | None:
        """Return the first recv from any rank that receives this message, if it is known."""
        group, _, receiver, tag = mail
        anyone = (call for call in self._messages if call.from_anyone)
        return next((call for call in anyone if _address(call) == (group, receiver, tag)), None)

    def _next(self, *key: object) -> tuple[int, int]:
        """Return the position of a rank's next call of its kind, and its number in this cell."""
        position = self._positions[key]
        self._positions[key] += 1
        self._numbers[key] += 1
        return position, self._numbers[key]


class LostRanksDetector(DeadlockDetector):
    """The detector of a run in which ranks may be lost: it records the calls in which ranks wait.

    A collective that fails on one rank may succeed on another. From then on it is unknown which
    calls belong together, so it blocks no rank and proves no deadlock. gloo raises errors on some
    of the ranks, and the time limit ends the others.
    """

    def feed(self, event: Event) -> bool:
        """Process an event; a rank may start any call."""
        super().feed(event)
        return True

    def proved(self) -> Stuck:
        """Return none: gloo may let any rank continue, with an error."""
        return {}

    at_last = proved

    def likely(self, without: Set[int] = frozenset()) -> Stuck:
        """Return none of the ranks, unless a schedule asks which ones wait for others."""
        return super().likely(without) if without else {}

    def abandoned(self, ranks: Iterable[int]) -> Stuck:  # noqa: ARG002
        """Return none: a rank may have been lost."""
        return {}

    def waits(self) -> dict[int, Call]:
        """Return the ranks that wait now, with their calls, whether others have arrived or not."""
        return {rank: calls[0] for rank, calls in self._blocked().items()}

    def conflicts(self) -> list[Operation]:
        """Return none: calls that do not match may belong to different operations."""
        return []


def _address(call: Call) -> tuple[str, int, int]:
    """Return where a recv from any rank looks for a message: a group, its rank, a tag."""
    return call.collective.group, call.rank, call.collective.tag


def _needed(call: Call, missing: Set[int]) -> Set[int]:
    """Return those of the missing ranks that a rank certainly needs to complete its call."""
    root = call.collective.root
    if call.from_anyone or call.sets_key:
        return set()
    if call.collective.op not in LOOSE_OPS:
        return missing
    if call.collective.op in ("reduce", "gather"):
        return missing if root == call.rank else set()
    return {root} & missing if root is not None else set()
