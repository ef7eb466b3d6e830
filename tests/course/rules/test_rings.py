"""The rule on wrong elements after a ring all-reduce, which says what a chunk lacks."""

import numpy as np
import pytest

from gradsync.records import Observation
from support.rules.rings import ring_mistakes

PARTS = np.array([[1.0, 2, 3, 4], [10, 20, 30, 40]])  # (rank, position)
SUM = PARTS.sum(0)


def found(rank_0, rank_1=SUM):
    """Return the diagnosis of two ranks that end with these tensors."""
    seen = Observation(2, ([np.array(rank_0)], [np.array(rank_1)]), (), (), 0.0, None)
    diagnoses = (rule(seen, [[SUM], [SUM]]) for rule in ring_mistakes([PARTS]))
    return next((diagnosis for diagnosis in diagnoses if diagnosis is not None), None)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        ([1.0, 2, 33, 44], "Chunk 0 (elements 0 to 1) is only rank 0's part."),
        ([11.0, 22, 63, 84], "Chunk 1 (elements 2 to 3) contains the part of rank 1 twice."),
        ([12.0, 22, 33, 44], "Chunk 0 (element 0) contains the part of rank 0 twice."),
        ([20.0, 40, 33, 44], "Chunk 0 (elements 0 to 1) lacks the part of rank 0 and contains"),
        ([0.3, 0.7, 33, 44], "Chunk 0 (elements 0 to 1) is no sum of the ranks' parts"),
    ],
    ids=["missing", "twice", "one element", "both", "other data"],
)
def test_the_first_wrong_chunk_is_described(tensor, what):
    diagnosis = found(tensor)

    assert diagnosis.code == "wrong-chunk"
    assert diagnosis.ranks == (0,)
    assert what in diagnosis.explanation


def test_a_mean_is_no_wrong_chunk():
    assert found(SUM / 2, SUM / 2).code == "divided-twice"


def test_right_sums_have_no_mistake():
    assert found(SUM) is None
