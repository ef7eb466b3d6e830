"""Mistakes in waiting for what was started, and for ranks that had better come all the same."""

from __future__ import annotations

from collections.abc import Callable

from gradsync.diagnose import Rule
from gradsync.ranks.wording import ranks_text
from gradsync.records import Collective, Diagnosis, Observation

UNAWAITED = ("send", "barrier")  # who starts one of these may have no use for its end


def nobody_waited(
    seen: Observation, guide: str, chosen: Callable[[Collective], bool] | None = None
) -> Diagnosis | None:
    """A rank entered a collective that leaves a result, and never saw to it that it was complete.

    Whether the result was there all the same is luck, so what came of it is no evidence.
    """
    chosen = chosen or (lambda collective: collective.op not in UNAWAITED)
    left = {(event.rank, event.call) for event in seen.events if event.kind == "exit"}
    kept = [
        (event.rank, event.collective)
        for event in seen.events
        if event.collective is not None
        and chosen(event.collective)
        and (event.rank, event.call) not in left
    ]
    if not kept:
        return None
    where = kept[0][1].where
    text = (
        f"the {kept[0][1].op} that starts at {where} is never waited for: until it is complete, "
        f"what it leaves is not what the ranks' meeting gives (GUIDELINES, {guide})"
    )
    return Diagnosis("no-rank-waits", tuple(sorted({r for r, _ in kept})), text, where, guide)


def stayed_away_with_nan(rank: int, what: str, guide: str) -> Rule:
    """Return the rule for a rank that came until it alone had something that is no number."""

    def rule(seen: Observation, _expected: object) -> Diagnosis | None:
        failure = seen.failure
        told = failure.diagnosis if failure and failure.status == "deadlock" else None
        if told is None or told.ranks != (rank,) or not seen.collectives(rank):
            return None
        text = (
            f"{told.explanation}. {ranks_text([rank]).capitalize()} alone had {what} that is no "
            "number. Whether to skip it is for all ranks to decide alike: who skips alone leaves "
            f"the others waiting (GUIDELINES, {guide})"
        )
        return Diagnosis(told.code, told.ranks, text, told.where, guide)

    return rule
