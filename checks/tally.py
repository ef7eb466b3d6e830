"""Counts of correct grades of a phase's known submissions, and their table in docs/figures.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checks.outcome import Outcome
from gradsync.course.known_submissions import Right, Wrong

NAMED_SHARE = 0.97  # share of the mistakes that must get the expected code first
BEGIN, END = "<!-- written by `make truth` -->", "<!-- up to here -->"


@dataclass(frozen=True, slots=True)
class Tally:
    """The numbers of correct grades of a phase."""

    counts: Mapping[str, tuple[int, int, float]]  # number correct, number graded, required share

    @property
    def sufficient(self) -> bool:
        return all(count >= share * of for count, of, share in self.counts.values())

    def cells(self) -> dict[str, str]:
        """Return this phase's column of the table, by row."""
        return {what: f"{count} of {of}" for what, (count, of, _) in self.counts.items()}


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """Count the outcomes of a phase's bank."""
    wrong = [o for o in outcomes if isinstance(o.known, Wrong)]
    right = [o for o in outcomes if isinstance(o.known, Right)]
    compared = [o for o in outcomes if o.same is not None]
    counts = {
        "mistakes caught": (sum(o.first is not None for o in wrong), len(wrong), 1.0),
        "expected diagnosis first": (sum(o.correct for o in wrong), len(wrong), NAMED_SHARE),
        "correct answers with full marks": (sum(o.correct for o in right), len(right), 1.0),
        "same verdict from all tests": (sum(bool(o.same) for o in compared), len(compared), 1.0),
    }
    return Tally(counts)


def table(tallies: Mapping[str, Tally], seconds: float) -> str:
    """Return a Markdown table with a column for each phase, and the duration of the grading."""
    columns = [one.cells() for one in tallies.values()]
    rows = [["", *tallies], ["---"] * (len(columns) + 1)]
    rows += [[what, *(column[what] for column in columns)] for what in columns[0]]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", f"Grading all of these took {seconds / 60:.1f} minutes."])


def write_into(page: Path, text: str) -> None:
    """Replace the table in docs/figures.md.

    Raises:
        ValueError: docs/figures.md has no marks around a table.
    """
    whole = page.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(
            f"{page} has no place for the table: {BEGIN} and {END}.\nThe table:\n{text}"
        )
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
