"""What tests say of values: assertions whose failure is told to a learner, not to us.

They compare on the trusted side, and show what the submission did, never what was expected of it
unless the contract says it anyway. A rule (see `gradsync.diagnose`) may name the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from gradsync.diagnose import Rule, first_diagnosis
from gradsync.diagnose.differences import told_difference
from gradsync.diagnose.values import ROUNDINGS, differing_ranks
from gradsync.ranks import RankFailure
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text


class Mistake(AssertionError):  # noqa: N818 - the learner's, found; not an error
    """A promise of the contract does not hold; the text is what a learner reads."""

    def __init__(self, message: str, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis


def assert_on_every_rank(
    seen: Observation,
    expected: Any,
    *,
    mistakes: Sequence[Rule] = (),
    otherwise: str = "what the ranks ended with is not what it should be",
    roundings: float = ROUNDINGS,
) -> None:
    """Hold every rank's value against `expected`, to the rounding of its own dtype.

    Args:
        seen: what the ranks returned: numbers, arrays, tensors, and lists and dicts of them.
        expected: the value of each rank, all alike.
        mistakes: rules asked in turn for the mistake that the values show.
        otherwise: what is said, with the ranks, where no rule knows.
        roundings: how many roundings the value may be off by, of its largest element.

    Raises:
        Mistake: a rank's value differs.
    """
    assert_rank_by_rank(
        seen, [expected] * len(seen), mistakes=mistakes, otherwise=otherwise, roundings=roundings
    )


def assert_rank_by_rank(
    seen: Observation,
    expected: Sequence[Any],
    *,
    mistakes: Sequence[Rule] = (),
    otherwise: str = "what the ranks ended with is not what it should be",
    roundings: float = ROUNDINGS,
) -> None:
    """Hold each rank's value against that rank's own expected value; see above."""
    wrong = differing_ranks(seen, expected, roundings)
    if wrong:
        otherwise += told_difference(list(seen), expected, roundings)
        blame(seen, expected, mistakes, otherwise, wrong)


def blame(
    seen: Observation,
    expected: Any,
    mistakes: Sequence[Rule],
    otherwise: str,
    ranks: Sequence[int] = (),
) -> None:
    """Raise the mistake that the first rule recognises, or say `otherwise`."""
    hold(first_diagnosis(seen, expected, mistakes))
    who = f"{ranks_text(ranks)}: " if ranks else ""
    raise Mistake(who + otherwise)


def hold(diagnosis: Diagnosis | None) -> None:
    """Raise the mistake that was found, if one was."""
    if diagnosis is not None:
        raise Mistake(diagnosis.explanation, diagnosis)


def hold_together(run: Callable[[], object]) -> None:
    """Hold a run of ranks to leave none of them waiting in vain; one may well raise.

    Raises:
        RankFailure: of a deadlock.
    """
    try:
        run()
    except RankFailure as failure:
        if failure.observation.failure and failure.observation.failure.status == "deadlock":
            raise


def seen_of(run: Callable[[], Observation]) -> Observation:
    """Return what was observed of a run of ranks, also of one that failed."""
    try:
        return run()
    except RankFailure as failure:
        return failure.observation


def each(seen: Observation, pick: Callable[[Any], Any]) -> Observation:
    """Return the observation with what `pick` takes of every rank's value in its place."""
    return replace(seen, values=tuple(pick(value) for value in seen))


def case_by_case(seen: Observation, count: int) -> list[Observation]:
    """Return what was seen of each of so many cases, of which every rank returned a list."""
    return [each(seen, itemgetter(case)) for case in range(count)]


def check(
    holds: bool, code: str, explanation: str, ranks: Sequence[int] = (), guide: str | None = None
) -> None:
    """Raise the mistake with that code and text unless the condition holds."""
    if not holds:
        hold(Diagnosis(code, tuple(ranks), explanation, guide=guide))
