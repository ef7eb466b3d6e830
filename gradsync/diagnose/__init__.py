"""Evidence in, `Diagnosis` out: pure functions, no processes, nothing but what was observed.

A rule looks at what the ranks did, and at what each rank's value should have been (None when the
run itself failed), and returns the mistake if it recognises it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis, Observation

Rule = Callable[[Observation, Any], "Diagnosis | None"]


def first_diagnosis(seen: Observation, expected: Any, rules: Sequence[Rule]) -> Diagnosis | None:
    """Return the diagnosis of the first rule that recognises the evidence."""
    for rule in rules:
        diagnosis = rule(seen, expected)
        if diagnosis is not None:
            return diagnosis
    return None


def first_match(seen: Observation, rules: Sequence[Rule]) -> Observation:
    """Return a failed observation with its failure diagnosed by the first rule that knows it."""
    diagnosis = first_diagnosis(seen, None, rules)
    if diagnosis is None or seen.failure is None:
        return seen
    return replace(seen, failure=replace(seen.failure, diagnosis=diagnosis))
