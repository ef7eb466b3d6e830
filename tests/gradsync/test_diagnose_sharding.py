"""From a run of a sharded optimizer that torch broke off to what torch did not find."""

import pytest

from gradsync.diagnose import first_match
from gradsync.diagnose.sharding import missing_defaults, not_gathered, not_sharded, used_up
from gradsync.records import Diagnosis, Failure, Observation


def broken_off(said):
    told = Diagnosis("exception", (0, 1), f"ranks 0, 1 raised ValueError: {said}")
    failure = Failure("error", told, exception="ValueError", detail=said)
    return Observation(2, (None, None), (), (), 0.0, failure)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("optimizer got an empty parameter list", "Go through it once"),
        ("optimizer must support momentum or beta1 with `cycle_momentum`", "`defaults`"),
    ],
)
def test_what_torch_misses_is_explained(said, told):
    seen = first_match(broken_off(said), [used_up, missing_defaults])

    text = seen.failure.diagnosis.explanation
    assert said in text
    assert told in text


def test_any_other_exception_is_left_as_it_is():
    seen = broken_off("something else")

    assert first_match(seen, [used_up, missing_defaults]) is seen


@pytest.mark.parametrize(
    ("kept", "found"), [([8, 8], True), ([9, 8, 8], True), ([8, 0], False), ([8], False)]
)
def test_state_that_every_rank_keeps_whole_is_not_sharded(kept, found):
    diagnosis = not_sharded(kept, 8)

    assert (diagnosis is not None) == found
    assert diagnosis is None or diagnosis.code == "state-not-sharded"


@pytest.mark.parametrize(("second", "found"), [([1.0, 5.0], False), ([1.5, 2.0], True)])
def test_of_a_parameter_that_was_to_rest_nobody_says_that_it_was_not_gathered(second, found):
    before, first, right = [0.0, 0.0], [1.5, 2.0], [[1.0, 2.0], [1.0, 3.0]]
    seen = Observation(1, ([first, [first[0], second[1]]],), (), (), 0.0, None)

    diagnosis = not_gathered(before)(seen, [right])

    assert (diagnosis is not None) == found
