"""The stored facts on submissions that no report contains: the learner and the time.

They are in `.class.json` in the folder of grades, so that a later run which grades one submission,
or none, makes the same gradebook.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gradsync.grading.output_files import FACTS


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a download has on a submission."""

    submission: str  # its name, as in its report
    learner: str  # the name in the gradebook; several attempts share it
    names: tuple[str, ...] = ()  # ids, addresses or names that the roster may have for the learner
    handed_in: datetime | None = None  # with a time zone
    attempt: int | None = None  # from 1, if there are several
    attempts: int = 1
    notes: tuple[str, ...] = ()
    counts: bool = True  # False: a later download no longer has this attempt


def read_facts(out: Path) -> dict[str, Facts]:
    """Return the stored facts by submission; there are none if the file is missing or damaged."""
    try:
        rows = json.loads((out / FACTS).read_text(encoding="utf-8"))["submissions"]
        return {row["submission"]: _facts(row) for row in rows}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def merged(previous: Mapping[str, Facts], new: Iterable[Facts]) -> dict[str, Facts]:
    """Return previous and new facts; previous attempts of the same learners don't count.

    The reports of previous attempts stay in their folders.
    """
    latest = {facts.submission: facts for facts in new}
    learners = {facts.learner for facts in latest.values()}
    kept = {
        name: replace(facts, counts=False) if facts.learner in learners else facts
        for name, facts in previous.items()
    }
    return kept | latest


def render(facts: Mapping[str, Facts]) -> str:
    """Return the facts as JSON, in the order of the submissions' names."""
    rows = [_row(each) for _, each in sorted(facts.items())]
    return json.dumps({"submissions": rows}, ensure_ascii=False, indent=1) + "\n"


def _row(facts: Facts) -> dict[str, Any]:
    moment = facts.handed_in
    return {**asdict(facts), "handed_in": moment.isoformat() if moment else None}


def _facts(row: dict[str, Any]) -> Facts:
    moment = row["handed_in"]
    texts = {key: tuple(map(str, row[key])) for key in ("names", "notes")}
    return Facts(
        **{**row, **texts, "handed_in": datetime.fromisoformat(moment) if moment else None}
    )
