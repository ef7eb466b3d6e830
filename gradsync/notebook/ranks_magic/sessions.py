"""The ranks of this notebook, by world size, until the kernel ends."""

from __future__ import annotations

import atexit

from gradsync.ranks.host.session import Session


class Sessions:
    """Ranks by world size: a cell on 2 ranks does not affect the ranks of a cell on 4."""

    def __init__(self) -> None:
        self._by_size: dict[int, Session] = {}
        self._last = 0  # the world size of the last cell
        atexit.register(self.reset)

    @property
    def sizes(self) -> list[int]:
        """The world sizes that have ranks, with the last cell's at the end."""
        return sorted(self._by_size, key=lambda size: size == self._last)

    def of(self, world_size: int) -> Session:
        """Return the ranks of this world size; start them if there are none.

        Raises:
            ValueError: the number of ranks is not allowed.
            LauncherError: the ranks could not be started.
        """
        if world_size not in self._by_size:
            self._by_size[world_size] = Session(world_size)
        self._last = world_size
        return self._by_size[world_size]

    def last(self) -> Session | None:
        """Return the ranks of the last cell."""
        return self._by_size.get(self._last)

    def forget(self, session: Session) -> None:
        """End ranks that can't be used any more."""
        self._by_size = {s: kept for s, kept in self._by_size.items() if kept is not session}
        session.close()

    def reset(self) -> int:
        """End all ranks; return their number."""
        ended = sum(self._by_size)
        for session in list(self._by_size.values()):
            self.forget(session)
        return ended
