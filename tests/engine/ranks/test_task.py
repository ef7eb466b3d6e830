"""Inputs by rank: each rank gets only its own input."""

import numpy as np
import pytest

from gradsync import RankFailure, run_ranks
from gradsync.ranks.task import by_rank


def test_each_rank_gets_its_own_input():
    grads = np.arange(12.0).reshape(3, 4)  # (rank, element)

    seen = run_ranks(lambda rank, grads: grads[rank], 3, grads=by_rank(grads))

    assert np.array_equal(np.stack(list(seen)), grads)


def test_the_input_of_another_rank_is_missing():
    with pytest.raises(RankFailure, match="KeyError"):
        run_ranks(lambda rank, grads: grads[1 - rank], 2, grads=by_rank([1.0, 2.0]))


def test_ranks_may_be_an_inner_axis():
    steps = np.arange(12).reshape(3, 2, 2)  # (step, rank, element)

    seen = run_ranks(lambda rank, steps: [step[rank] for step in steps], 2, steps=by_rank(steps, 1))

    assert np.array_equal(np.stack([np.stack(own) for own in seen], axis=1), steps)


def test_inputs_of_both_kinds_can_be_combined():
    def give(rank, same, own):
        return same, own[rank]

    seen = run_ranks(give, 2, same="for all", own=by_rank("ab"))

    assert list(seen) == [("for all", "a"), ("for all", "b")]
