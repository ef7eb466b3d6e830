"""Assertions for tests of submissions; their messages are written for learners.

They compare values on the trusted side. Messages describe what the submission did, but reveal
expected values only if the contract does. A rule (see `gradsync.diagnose`) may name the mistake.
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


class Mistake(AssertionError):  # noqa: N818 - a mistake of the learner, not an error
    """A submission breaks a promise of the contract; the message is for the learner."""

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
    """Check that every rank's value equals `expected`, up to rounding in its dtype.

    Args:
        seen: the ranks' return values: numbers, arrays, tensors, and lists and dicts of them.
        expected: the expected value, the same on every rank.
        mistakes: rules that are asked, in order, which mistake the values show.
        otherwise: the message if no rule applies; the ranks are added.
        roundings: the allowed error, in roundings of the largest element.

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
    """Check that each rank's value equals that rank's expected value; see above."""
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
    """Raise the mistake that the first matching rule finds, or one with the text `otherwise`."""
    hold(first_diagnosis(seen, expected, mistakes))
    who = f"{ranks_text(ranks).capitalize()}: " if ranks else ""
    raise Mistake(who + otherwise)


def hold(diagnosis: Diagnosis | None) -> None:
    """Raise the mistake, if there is one."""
    if diagnosis is not None:
        raise Mistake(diagnosis.explanation, diagnosis)


def hold_together(run: Callable[[], object]) -> None:
    """Check that a run of ranks does not deadlock; ranks may raise exceptions.

    Raises:
        RankFailure: the ranks are in a deadlock.
    """
    try:
        run()
    except RankFailure as failure:
        if failure.observation.failure and failure.observation.failure.status == "deadlock":
            raise


def seen_of(run: Callable[[], Observation]) -> Observation:
    """Return the observation of a run of ranks, even if the run failed."""
    try:
        return run()
    except RankFailure as failure:
        return failure.observation


def each(seen: Observation, pick: Callable[[Any], Any]) -> Observation:
    """Return the observation with each rank's value replaced by `pick(value)`."""
    return replace(seen, values=tuple(pick(value) for value in seen))


def case_by_case(seen: Observation, count: int) -> list[Observation]:
    """Split an observation of lists with one item per case into one observation per case."""
    return [each(seen, itemgetter(case)) for case in range(count)]


def check(
    holds: bool, code: str, explanation: str, ranks: Sequence[int] = (), guide: str | None = None
) -> None:
    """Raise the mistake with that code and text unless the condition holds."""
    if not holds:
        hold(Diagnosis(code, tuple(ranks), explanation, guide=guide))
