"""Mistakes with files that a training leaves."""

from __future__ import annotations

from typing import Any

from gradsync.diagnose import Rule
from gradsync.ranks.wording import ranks_text
from gradsync.records import Diagnosis, Observation

CUT_SHORT = ("too large", "PytorchStreamWriter", "inline_container")  # what such a write says


def writes_too(guide: str) -> Rule:
    """Return the rule for a rank that should not write, known by the limit that it ran into."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is None or failure.status != "error" or 0 in failure.diagnosis.ranks:
            return None
        if not any(sign in (failure.detail or "") for sign in CUT_SHORT):
            return None
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        text = (
            f"{ranks_text(ranks)} wrote to the disk, at "
            f"{where}: rank 0 alone writes a checkpoint, or N ranks write over each other "
            f"(GUIDELINES, {guide})"
        )
        return Diagnosis("every-rank-writes", ranks, text, where, guide)

    return rule
