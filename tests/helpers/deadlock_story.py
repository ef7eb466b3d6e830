"""Feed events of ranks to a detector with short, readable calls."""

from collections import Counter

from gradsync.ranks.deadlocks import explanations
from gradsync.ranks.deadlocks.detector import DeadlockDetector
from gradsync.records import Collective, Event


class Story:
    """Feeds events of ranks to a detector."""

    def __init__(self, world_size, **options):
        self.detector = DeadlockDetector(world_size, **options)
        self.everyone = tuple(range(world_size))
        self.calls = Counter()

    def enters(self, rank, op="all_reduce", **fields):
        fields = {"group": "0", "members": self.everyone, "shapes": ((2,),), **fields}
        call = self.calls[rank]
        self.calls[rank] += 1
        event = Event(rank, "enter", call, 0.0, 1, collective=Collective(op, **fields))
        return self.detector.feed(event)

    def waits(self, rank, call=None, *, thread=1, others=0):
        call = self.calls[rank] - 1 if call is None else call
        self.detector.feed(Event(rank, "wait", call, 0.0, thread, others))

    def leaves(self, rank, call=None, others=0):
        call = self.calls[rank] - 1 if call is None else call
        self.detector.feed(Event(rank, "exit", call, 0.0, 1, others))

    def waits_in(self, rank, op="all_reduce", **fields):
        self.enters(rank, op, **fields)
        self.waits(rank)

    def returns(self, rank):
        self.detector.over.add(rank)

    @property
    def proved(self):
        return set(self.detector.proved())

    @property
    def likely(self):
        return set(self.detector.likely())

    def diagnosis(self):
        return explanations.explain(self.detector, self.detector.likely()).diagnosis
