"""Calculate what lateness costs."""

from __future__ import annotations

import math
from datetime import datetime

from gradsync.class_records import Person
from gradsync.course.settings import LateRules

DAY = 24 * 60 * 60  # seconds


def days_late(rules: LateRules, handed_in: datetime | None, person: Person | None) -> float:
    """Return the days after the due time, the person's extension and the grace period."""
    due = (person.due if person else None) or rules.due
    if due is None or handed_in is None:
        return 0.0
    allowed = rules.grace_days + (person.days if person else 0.0)
    return max((handed_in - due).total_seconds() / DAY - allowed, 0.0)


def points_lost(rules: LateRules, days: float, score: float, max_score: float) -> float:
    """Return the points lost by so many days: each day that has begun counts, down to 0 points."""
    return min(rules.per_day * math.ceil(days) * max_score, max(score, 0.0))
