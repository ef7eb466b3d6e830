"""What the grades of a phase's bank came to, and the table of it that README.md shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.outcome import Outcome
from gradsync.bank import Right, Wrong

NAMED_SHARE = 0.97  # of the mistakes, that must be named with the expected code first
BEGIN, END = "<!-- written by `make truth` -->", "<!-- up to here -->"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of a phase's grades are true, and how long they took."""

    counts: Mapping[str, tuple[int, int, float]]  # so many, of so many, and what share is wanted
    seconds: float

    @property
    def holds(self) -> bool:
        return all(count >= share * of for count, of, share in self.counts.values())

    def cells(self) -> dict[str, str]:
        """Return its column of the table, by row."""
        told = {what: f"{count} of {of}" for what, (count, of, _) in self.counts.items()}
        return {**told, "graded in": f"{self.seconds / 60:.1f} min"}


def tally(outcomes: Sequence[Outcome], seconds: float) -> Tally:
    """Count what came of a phase's bank."""
    wrong = [o for o in outcomes if isinstance(o.known, Wrong)]
    right = [o for o in outcomes if isinstance(o.known, Right)]
    compared = [o for o in outcomes if o.alike is not None]
    counts = {
        "mistakes caught": (sum(o.first is not None for o in wrong), len(wrong), 1.0),
        "mistakes named rightly, first": (sum(o.true for o in wrong), len(wrong), NAMED_SHARE),
        "correct answers with full marks": (sum(o.true for o in right), len(right), 1.0),
        "told alike by all tests": (sum(bool(o.alike) for o in compared), len(compared), 1.0),
    }
    return Tally(counts, seconds)


def table(tallies: Mapping[str, Tally]) -> str:
    """Return the tallies of phases side by side, in Markdown."""
    columns = [one.cells() for one in tallies.values()]
    rows = [["", *tallies], ["---"] * (len(columns) + 1)]
    rows += [[what, *(column[what] for column in columns)] for what in columns[0]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def show_in(readme: Path, text: str) -> None:
    """Write the table where README.md has one.

    Raises:
        ValueError: it has none.
    """
    whole = readme.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{readme} has no place for the table, {BEGIN} to {END}:\n{text}")
    readme.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
