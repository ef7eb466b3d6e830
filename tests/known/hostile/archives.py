"""Hostile submissions: their attacks, the files that may be read, and the text of a note.

An attack is a function that writes its submission into a folder and returns its path. It is in
`zip_attacks.py`, `tar_attacks.py` or `folder_attacks.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LOADER, TRAINER = "phase1/template_data_loader.py", "phase1/template_trainer.py"
HONEST = {LOADER: b"loader = 1\n", TRAINER: b"trainer = 1\n"}
SOLUTION = b"the reference solution, which no submission may read\n"
OUTSIDE = "solutions/phase1"  # a folder next to the submission's; it contains the solution


@dataclass(frozen=True)
class Attack:
    make: Callable[[Path], Path]
    reads: frozenset[str]  # the only files of HONEST that are read
    note: str  # a part of one of the notes

    @property
    def name(self) -> str:
        return self.make.__name__


ATTACKS: list[Attack] = []


def attack(*reads: str, note: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    """Add a function to the corpus, with the files that are still read, and the expected note."""

    def add(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        ATTACKS.append(Attack(make, frozenset(reads), note))
        return make

    return add
