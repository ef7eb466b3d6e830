"""Trusted: the launcher whose ranks order sets of strings differently, as torchrun's ranks do.

Ranks that are forked from one process share its hash seed. Each warm process here has its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from gradsync.ranks.host.launchers.fork import ForkedProcesses, ForkLauncher

SEEDS = 4  # warm processes at most; each takes as long to start, and as much memory, as the first

T = TypeVar("T")


class HashSeedsLauncher:
    """Forks rank r from the warm process r % 4, which starts when a run first needs it."""

    def __init__(self) -> None:
        self._launchers = [ForkLauncher(hash_seed=seed) for seed in range(SEEDS)]

    def warm_up(self, also: Sequence[str] = ()) -> None:
        """Start to import torch in the background, for runs with two ranks."""
        for launcher in self._launchers[:2]:
            launcher.warm_up(also)

    @contextmanager
    def started(
        self, world_size: int, directory: str, readable: Sequence[Path]
    ) -> Iterator[DividedProcesses]:
        used = self._launchers[:world_size]
        for launcher in used:
            launcher.warm_up()
        with ExitStack() as stack:
            parts = [
                stack.enter_context(
                    launcher.started(len(range(first, world_size, SEEDS)), directory, readable)
                )
                for first, launcher in enumerate(used)
            ]
            yield DividedProcesses(parts, world_size)


class DividedProcesses:
    """The ranks of one run, of which each warm process has started a part."""

    def __init__(self, parts: Sequence[ForkedProcesses], world_size: int) -> None:
        self._parts = parts
        self._places = [(parts[rank % SEEDS], rank // SEEDS) for rank in range(world_size)]
        self.lines = [part.lines[number] for part, number in self._places]

    def replace(self, rank: int) -> None:
        part, number = self._places[rank]
        part.replace(number)
        self.lines[rank] = part.lines[number]

    def exit_codes(self) -> dict[int, int]:
        return self._by_rank([part.exit_codes() for part in self._parts])

    def excess(self) -> None:
        """Return None: this launcher has no limits."""

    def starved(self) -> float:
        return max(part.starved() for part in self._parts)

    def ran(self) -> dict[int, float]:
        return self._by_rank([part.ran() for part in self._parts])

    def ask_stacks(self, rank: int) -> None:
        part, number = self._places[rank]
        part.ask_stacks(number)

    def _by_rank(self, parts: Sequence[dict[int, T]]) -> dict[int, T]:
        """Return the parts' values by rank; each part counts its own ranks."""
        return {
            number * SEEDS + first: value
            for first, part in enumerate(parts)
            for number, value in part.items()
        }
