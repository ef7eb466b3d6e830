"""Pure functions that diagnose a mistake from the observation of a run alone.

A rule takes the observation, and the expected value of each rank (None if the run itself failed).
It returns a diagnosis if it recognises the mistake, otherwise None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis, Observation

Rule = Callable[[Observation, Any], "Diagnosis | None"]


def first_diagnosis(seen: Observation, expected: Any, rules: Sequence[Rule]) -> Diagnosis | None:
    """Return the diagnosis of the first rule that recognises the mistake, or None."""
    for rule in rules:
        diagnosis = rule(seen, expected)
        if diagnosis is not None:
            return diagnosis
    return None


def first_match(seen: Observation, rules: Sequence[Rule]) -> Observation:
    """Return a failed observation, with the diagnosis of the first rule that recognises it."""
    diagnosis = first_diagnosis(seen, None, rules)
    if diagnosis is None or seen.failure is None:
        return seen
    return replace(seen, failure=replace(seen.failure, diagnosis=diagnosis))
