"""The lines of a learner's file around the line that a diagnosis names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent

from gradsync.records import Verdict

AROUND = 3  # lines before and after


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file."""

    number: int
    text: str
    named: bool  # by the diagnosis


def excerpt(verdict: Verdict, files: Mapping[str, bytes]) -> list[Line]:
    """Return the lines around the one that a verdict's diagnosis names; none if it names none.

    Args:
        verdict: the verdict; its place is "template_trainer.py:94".
        files: the learner's files, by path: "phase1/template_trainer.py".
    """
    where = (verdict.diagnosis and verdict.diagnosis.where) or ""
    name, _, number = where.rpartition(":")
    source = files.get(f"{verdict.phase}/{name}")
    if source is None or not number.isdecimal():
        return []
    lines = source.decode("utf-8-sig", "replace").splitlines()
    at = int(number)
    shown = range(max(at - AROUND, 1), min(at + AROUND, len(lines)) + 1)
    texts = dedent("\n".join(lines[n - 1].expandtabs(4) for n in shown)).split("\n")
    pairs = zip(shown, texts, strict=True) if at in shown else ()
    return [Line(number, text, number == at) for number, text in pairs]
