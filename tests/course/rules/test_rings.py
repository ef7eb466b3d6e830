"""The rule on wrong elements after a ring all-reduce."""

import numpy as np

from gradsync.records import Observation
from support.rules.rings import some_chunks_wrong


def ended_with(*values):
    return Observation(len(values), tuple(values), (), (), 0.0, None)


def test_the_positions_of_wrong_elements_are_reported():
    right = np.arange(1.0, 7.0)
    wrong = right.copy()
    wrong[2:4] = 0.5

    found = some_chunks_wrong(ended_with([right], [wrong]), [[right], [right]])

    assert found.code == "wrong-chunk"
    assert found.ranks == (1,)
    assert "On rank 1 of 2, 2 of 6 elements" in found.explanation
    assert "the first is at position 2, the last at 3" in found.explanation


def test_right_sums_have_no_wrong_chunk():
    right = [np.ones((2, 3))]

    assert some_chunks_wrong(ended_with(right, right), [right, right]) is None
