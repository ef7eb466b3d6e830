"""The rules on sharded optimizers."""

import pytest

from gradsync.records import Diagnosis, Failure, Observation
from gradsync.testing.rules import first_match
from support.rules.sharding import missing_defaults, not_gathered, not_sharded, used_up


def raised(message):
    diagnosis = Diagnosis("exception", (0, 1), f"Ranks 0 and 1 raised ValueError: {message}.")
    failure = Failure("error", diagnosis, exception="ValueError", detail=message)
    return Observation(2, (None, None), (), (), 0.0, failure)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("optimizer got an empty parameter list", "Go through it once"),
        ("optimizer must support momentum or beta1 with `cycle_momentum`", "`defaults`"),
    ],
)
def test_torchs_error_gets_a_reason(message, reason):
    seen = first_match(raised(message), [used_up, missing_defaults])

    text = seen.failure.diagnosis.explanation
    assert f"{message}. " in text
    assert reason in text


def test_any_other_exception_gets_no_reason():
    seen = raised("something else")

    assert first_match(seen, [used_up, missing_defaults]) is seen


@pytest.mark.parametrize(
    ("kept", "found"), [([8, 8], True), ([9, 8, 8], True), ([8, 0], False), ([8], False)]
)
def test_state_is_not_sharded_if_every_rank_keeps_all_of_it(kept, found):
    diagnosis = not_sharded(kept, 8)

    assert (diagnosis is not None) == found
    assert diagnosis is None or diagnosis.code == "state-not-sharded"


@pytest.mark.parametrize(("second", "found"), [([1.0, 5.0], False), ([1.5, 2.0], True)])
def test_a_parameter_that_no_step_should_change_does_not_count_as_not_gathered(second, found):
    before, first, right = [0.0, 0.0], [1.5, 2.0], [[1.0, 2.0], [1.0, 3.0]]
    seen = Observation(1, ([first, [first[0], second[1]]],), (), (), 0.0, None)

    diagnosis = not_gathered(before)(seen, [right])

    assert (diagnosis is not None) == found
