"""Random programs, and a small simulation that runs them.

The simulation has its own implementation of matching.
"""

import random
from collections import deque
from dataclasses import replace

from hypothesis import strategies as st

from gradsync.ranks.deadlocks.detector import LOOSE_OPS, DeadlockDetector
from gradsync.records import Collective, Event

COLLECTIVES = ("all_reduce", "barrier", "broadcast", "reduce")


@st.composite
def programs(draw):
    """Draw the calls of N ranks, in an order that works for all of them."""
    world_size = draw(st.integers(2, 4))
    ranks = st.integers(0, world_size - 1)
    steps = []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            members = tuple(sorted(draw(st.sets(ranks, min_size=1))))
            op, root = draw(st.sampled_from(COLLECTIVES)), draw(st.sampled_from(members))
            root = root if op in LOOSE_OPS else None
            call = Collective(op, str(members), members, ((2,),), root=root)
            steps.append(dict.fromkeys(members, call))
        else:
            source, target = draw(st.permutations(range(world_size)))[:2]
            tag = draw(st.integers(0, 1))
            send = Collective("send", "0", tuple(range(world_size)), peer=target, tag=tag)
            steps.append({source: send, target: replace(send, op="recv", peer=source)})
    return world_size, steps


class World:
    """N ranks that run their steps in a random order; their events are read in a different order.

    If `loose`, a rank completes a loose collective as soon as it has the data it needs.
    """

    def __init__(self, world_size, steps, seed, *, loose=False):
        self.loose = loose
        self.random = random.Random(seed)
        self.detector = DeadlockDetector(world_size)
        self.todo = [
            deque((number, step[rank]) for number, step in enumerate(steps) if rank in step)
            for rank in range(world_size)
        ]
        self.unread = [deque() for _ in range(world_size)]
        self.doing = ["compute"] * world_size
        self.started = [[] for _ in range(world_size)]
        self.calls = [0] * world_size
        self.backlog = [[] for _ in range(world_size)]

    def run(self, after_each_report=lambda: None):
        """Run until no rank can continue."""
        while choices := list(self._choices()):
            action, rank = self.random.choice(choices)
            action(rank)
            if action == self._read:
                after_each_report()

    @property
    def done(self):
        return all(state == "over" for state in self.doing)

    def _choices(self):
        for rank, state in enumerate(self.doing):
            if self.unread[rank]:
                yield self._read, rank
            if state == "compute":
                yield (self._enter if self.todo[rank] else self._return), rank
            if state == "wait" and self._is_complete(rank):
                yield self._leave, rank

    def _enter(self, rank):
        event = Event(rank, "enter", self.calls[rank], 0.0, 1, collective=self.todo[rank][0][1])
        self._report(rank, event, replace(event, kind="wait", collective=None))
        self.doing[rank] = "ask"

    def _read(self, rank):
        event = self.unread[rank].popleft()
        if event == "over":
            self.detector.over.add(rank)
        elif self.detector.feed(event) and event.kind == "enter":
            self.started[rank].append(self.todo[rank].popleft())
            self.doing[rank] = "wait"

    def _leave(self, rank):
        self.backlog[rank].append(Event(rank, "exit", self.calls[rank], 0.0, 1))
        if self.started[rank][-1][1].op in LOOSE_OPS:
            self._report(rank)
        self.calls[rank] += 1
        self.doing[rank] = "compute"

    def _return(self, rank):
        self._report(rank, "over")
        self.doing[rank] = "over"

    def _report(self, rank, *events):
        self.unread[rank] += [*self.backlog[rank], *events]
        self.backlog[rank].clear()

    def _is_complete(self, rank):
        _, mine = self.started[rank][-1]
        partners = mine.members if mine.peer is None else (mine.peer,)
        if self.loose and mine.root not in (None, rank):
            partners = (mine.root,) if mine.op == "broadcast" else ()
        return all(
            self._count(rank, other, mine) <= self._met(other, rank, mine) for other in partners
        )

    def _count(self, rank, other, mine):
        return sum(self._alike(call, mine, other) for _, call in self.started[rank])

    def _met(self, other, rank, mine):
        back = {"send": "recv", "recv": "send"}
        theirs = replace(mine, op=back.get(mine.op, mine.op))
        return sum(self._alike(call, theirs, rank) for _, call in self.started[other])

    @staticmethod
    def _alike(call, wanted, peer):
        if wanted.peer is None:
            return call.group == wanted.group and call.peer is None
        return (call.op, call.peer, call.tag) == (wanted.op, peer, wanted.tag)
