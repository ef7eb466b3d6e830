"""Trusted, pure: the standoff of a run in which ranks may be lost.

A collective that fails on one rank may have succeeded on another. From then on nobody knows which
of their calls belong together: gloo tells the survivors what it notices, and the time limit ends
the rest.
"""

from __future__ import annotations

from gradsync.ranks.calls import Call, Meeting
from gradsync.ranks.standoff import Standoff, Stuck
from gradsync.records import Event


class LenientStandoff(Standoff):
    """Holds no rank back and proves nothing; it knows who waits in what."""

    def feed(self, event: Event) -> bool:
        """Take one event; whatever a rank enters, it may start."""
        super().feed(event)
        return True

    def proved(self) -> Stuck:
        """Return none: gloo may let any rank go on, with an error."""
        return {}

    likely = at_last = proved

    def waits(self) -> dict[int, Call]:
        """Return the ranks that wait now, and in what, whoever may have come there."""
        return {rank: calls[0] for rank, calls in self._blocked().items()}

    def conflicts(self) -> list[Meeting]:
        """Return none: calls that do not fit may belong to other ones."""
        return []
