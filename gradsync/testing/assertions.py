"""Assertions on the values that ranks return, whose messages are written for learners.

The values are compared in the grader's process. A message shows what the submission did, and the
expected value only if the contract states it. A rule (see `gradsync.testing.rules`) may name the
mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from gradsync.ranks import RankFailure
from gradsync.records import Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule, first_diagnosis
from gradsync.testing.values import ROUNDINGS, differing_ranks
from gradsync.text import ranks_text


class Mistake(AssertionError):  # noqa: N818 - the learner's mistake, not this package's error
    """The submission breaks the contract; the text is the message for the learner."""

    def __init__(self, message: str, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis


def assert_on_every_rank(
    seen: Observation,
    expected: Any,
    *,
    mistakes: Sequence[Rule] = (),
    otherwise: str = "the returned values are not the expected ones",
    roundings: float = ROUNDINGS,
) -> None:
    """Check that every rank's value equals `expected`, up to rounding in its own dtype.

    Args:
        seen: the ranks' values: numbers, arrays, tensors, and lists and dicts of them.
        expected: the value that all ranks should have.
        mistakes: rules that may recognise the mistake, tried in this order.
        otherwise: the message if no rule does; it follows "Wrong result on rank 1: ".
        roundings: the largest error allowed, in roundings of the value's largest element.

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
    otherwise: str = "the returned values are not the expected ones",
    roundings: float = ROUNDINGS,
) -> None:
    """Check each rank's value against its own expected value; see `assert_on_every_rank`."""
    wrong = differing_ranks(seen, expected, roundings)
    if wrong:
        raise_mistake(first_diagnosis(seen, expected, mistakes))
        difference = describe_difference(list(seen), expected, roundings)
        raise Mistake(f"Wrong result on {ranks_text(wrong)}: {otherwise}{difference}.")


def raise_mistake(diagnosis: Diagnosis | None) -> None:
    """Raise the diagnosed mistake, if there is one."""
    if diagnosis is not None:
        raise Mistake(diagnosis.explanation, diagnosis)


def check_no_deadlock(run: Callable[[], Observation]) -> Observation | None:
    """Check that a run of ranks does not deadlock, and return its observation.

    Its ranks may raise: then return None.

    Raises:
        RankFailure: the run deadlocks.
    """
    try:
        return run()
    except RankFailure as failure:
        if failure.observation.failure and failure.observation.failure.status == "deadlock":
            raise
        return None


def seen_of(run: Callable[[], Observation]) -> Observation:
    """Return the observation of a run of ranks, even if the run fails.

    Raises:
        RankFailure: an exercise is not written yet.
    """
    try:
        return run()
    except RankFailure as error:
        failure = error.observation.failure
        if failure is not None and failure.status == "unfinished":
            raise
        return error.observation


def each(seen: Observation, pick: Callable[[Any], Any]) -> Observation:
    """Return the observation with `pick(value)` instead of every rank's value."""
    return replace(seen, values=tuple(pick(value) for value in seen))


def case_by_case(seen: Observation, count: int) -> list[Observation]:
    """Return the observation of each case, if every rank returned a list with `count` cases."""
    return [each(seen, itemgetter(case)) for case in range(count)]


def check(
    holds: bool,
    code: str,
    explanation: str,
    ranks: Sequence[int] = (),
    guide: str | None = None,
    *,
    vague: bool = False,
) -> None:
    """Raise a mistake with this code and explanation unless the condition `holds`.

    It is `vague` if the explanation only describes a symptom.
    """
    if not holds:
        raise_mistake(Diagnosis(code, tuple(ranks), explanation, guide=guide, vague=vague))
