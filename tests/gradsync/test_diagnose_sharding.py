"""From a run of a sharded optimizer that torch broke off to what torch did not find."""

import pytest

from gradsync.diagnose import first_match
from gradsync.diagnose.sharding import missing_defaults, used_up
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
