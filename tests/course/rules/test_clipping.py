"""The norm of gradients in parts: the right one passes, each known mistake gets its code."""

import math

import numpy as np
import pytest

from support.rules.clipping import norm_mistake

GRADS = {"weight": np.array([[3.0, 4.0], [12.0, 0.0]]), "bias": np.array([84.0])}
SHARDED, SMALL = 169.0, 7056.0  # sums of squares


@pytest.mark.parametrize(
    ("norms", "code"),
    [
        ([85.0, 85.0], None),
        ([math.sqrt(25 + SMALL), math.sqrt(144 + SMALL)], "norm-of-one-shard"),
        ([math.sqrt(SHARDED + 2 * SMALL)] * 2, "counted-twice"),
        ([math.sqrt(SHARDED / 2 + SMALL)] * 2, "divided-twice"),
        ([13.0, 13.0], "only-some-parameters"),
        ([84.0, 84.0], "only-some-parameters"),
        ([7225.0, 7225.0], "norm-not-a-root"),
        ([5 + 12 + 84.0] * 2, "norms-added"),
        ([80.0, 80.0], "differs-from-single-process"),
    ],
)
def test_a_norm_gets_its_code(norms, code):
    found = norm_mistake(norms, GRADS)

    assert (found and found.code) == code
