"""Trusted, pure: the detector of a run in which ranks may be lost.

A collective that fails on one rank may succeed on another. From then on it is unknown which calls
belong together. gloo raises errors on some of the ranks, and the time limit ends the others.
"""

from __future__ import annotations

from gradsync.ranks.deadlocks.calls import Call, Operation
from gradsync.ranks.deadlocks.detector import DeadlockDetector, Stuck
from gradsync.records import Event


class LostRanksDetector(DeadlockDetector):
    """Blocks no rank and proves no deadlock, but records the calls in which ranks wait."""

    def feed(self, event: Event) -> bool:
        """Process an event; a rank may start any call."""
        super().feed(event)
        return True

    def proved(self) -> Stuck:
        """Return none: gloo may let any rank continue, with an error."""
        return {}

    likely = at_last = proved

    def waits(self) -> dict[int, Call]:
        """Return the ranks that wait now, with their calls, whether others have arrived or not."""
        return {rank: calls[0] for rank, calls in self._blocked().items()}

    def conflicts(self) -> list[Operation]:
        """Return none: calls that do not match may belong to different operations."""
        return []
