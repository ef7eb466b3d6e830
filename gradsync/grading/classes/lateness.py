"""Calculate how late submissions are, and the points that they lose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from gradsync.class_records import Person, Result
from gradsync.course.settings import LateRules
from gradsync.submission.contents import listing
from gradsync.text import counted, verb

DAY = 24 * 60 * 60  # seconds


def days_late(rules: LateRules, handed_in: datetime | None, person: Person | None) -> float:
    """Return the days after the due time, the person's extension and the grace period."""
    due = (person.due if person else None) or rules.due
    if due is None or handed_in is None:
        return 0.0
    allowed = rules.grace_days + (person.days if person else 0.0)
    return max((handed_in - due).total_seconds() / DAY - allowed, 0.0)


def lacks_time(rules: LateRules, result: Result) -> bool:
    """Return whether a submission may be late, but has no known time of handing in."""
    due = (result.person.due if result.person else None) or rules.due
    return due is not None and result.handed_in is None


def untimed_text(submissions: Sequence[str]) -> str:
    """Return a warning that lateness is not calculated for submissions, and what to do."""
    return (
        f"Lateness is not calculated for {counted(len(submissions), 'submission')}, because it is "
        f"not known when {verb(submissions, 'it was', 'they were')} handed in: "
        f"{listing(submissions)}. To subtract points, write them into overrides.csv."
    )


def points_lost(rules: LateRules, days: float, score: float, max_score: float) -> float:
    """Return the points lost: each day that has begun counts, but the score stays at least 0."""
    return min(rules.per_day * math.ceil(days) * max_score, max(score, 0.0))
