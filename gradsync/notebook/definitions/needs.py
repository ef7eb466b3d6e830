"""Find the statements that a name needs, among all statements of a notebook."""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence

from gradsync.notebook.definitions.statements import STAR, Statement

LATEST = -1  # in place of the index of the reading statement: the name is read later
ALL = -2


def needed(statements: Sequence[Statement], wanted: Collection[str]) -> set[int]:
    """Return the indices of the statements that define the wanted names and their needs."""
    search = _Search(statements)
    search.run([(name, LATEST, False) for name in wanted])
    return search.kept


class _Search:
    """Finds the statements that define names, then the names that these need, and so on.

    A name is looked up with its value at the end, or before a statement that reads it. Functions
    that such a statement calls may need older values of other names, so all of these are kept.
    """

    def __init__(self, statements: Sequence[Statement]) -> None:
        self.kept: set[int] = set()
        self._statements = statements
        self._chains = _chains(statements)
        self._stars = [i for i, statement in enumerate(statements) if STAR in statement.binds]
        self._seen: set[tuple[str, int, bool]] = set()
        self._names: list[tuple[str, int, bool]] = []

    def run(self, names: list[tuple[str, int, bool]]) -> None:
        """Look up (name, index of the statement that reads it, whether it may be called)."""
        self._names = names
        while self._names:
            name, reader, called = self._names.pop()
            if name in self._chains:
                for chain in self._active(name, reader, called):
                    self._keep(chain, called)
            elif not hasattr(builtins, name):
                self._keep(self._stars, called)
                self._stars = []

    def _active(self, name: str, reader: int, called: bool) -> list[list[int]]:
        """Return the chains of statements that give a name the value that `reader` reads."""
        chains = self._chains[name]
        at = bisect_left(chains, [reader]) - 1 if reader >= 0 else -1
        key = name, (ALL if reader == ALL else chains[at][0]), called
        if key in self._seen:
            return []
        self._seen.add(key)
        return chains if reader == ALL else [chains[at]]

    def _keep(self, chain: Sequence[int], called: bool) -> None:
        for index in chain:
            statement = self._statements[index]
            if (STAR, index, called) not in self._seen:
                self._seen.add((STAR, index, called))
                self.kept.add(index)
                calls = called or statement.calls
                later = ALL if called or (calls and not statement.defines) else LATEST
                self._names += [(name, index, calls) for name in statement.eager]
                self._names += [(name, later, called) for name in statement.lazy]


def _chains(statements: Sequence[Statement]) -> dict[str, list[list[int]]]:
    """Return, by name, the statements that change it, in groups that begin with a new value."""
    chains: dict[str, list[list[int]]] = defaultdict(list)
    packages: set[str] = set()  # the names whose value is an imported package
    for index, statement in enumerate(statements):
        for name in statement.binds:
            continues = not statement.replaces or (statement.adds and name in packages)
            if not chains[name] or not continues:
                chains[name].append([])
            chains[name][-1].append(index)
            (packages.add if statement.adds else packages.discard)(name)
        for name in statement.touches - statement.binds:
            if name in chains:
                chains[name][-1].append(index)
    return dict(chains)
