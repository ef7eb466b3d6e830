import sys

import pytest

from gradsync import run_ranks
from gradsync.probes import Info, raised
from gradsync.probes.sampling import random_states


def test_probes_travel_with_the_run_and_are_not_found_on_a_rank_beforehand():
    def function(rank):
        known = [name for name in sys.modules if name.startswith("gradsync.probes")]
        return [Info(rank, 2).rank, len(random_states()), known]

    seen = run_ranks(function, 2)

    assert list(seen) == [[0, 3, []], [1, 3, []]]


def test_an_exercise_that_is_still_to_be_written_is_no_refusal():
    def unwritten():
        raise NotImplementedError("phase1/train")

    with pytest.raises(NotImplementedError):
        raised(unwritten)


def test_what_a_call_ends_in_is_taken_home():
    assert isinstance(raised(lambda: int("one")), ValueError)
    assert raised(list) is None
