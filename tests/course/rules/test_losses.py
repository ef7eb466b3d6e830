"""Mistakes in the loss of a step, recognised by the losses that the ranks return."""

import pytest

from gradsync.records import Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.losses import loss_mistakes

OWN = [1.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("returned", "code", "ranks"),
    [
        (OWN, "loss-is-local", (0, 1, 2)),
        ([1 / 3, 2 / 3, 2.0], "loss-is-local", (0, 1, 2)),
        ([9.0] * 3, "sum-not-mean", (0, 1, 2)),
        ([1.0] * 3, "divided-twice", (0, 1, 2)),
        ([3.0, 2.0, 6.0], "only-one-rank-has-it", (1, 2)),
        ([2.0] * 3, "loss-is-local", (0, 1, 2)),
        ([2.5] * 3, "differs-from-single-process", (0, 1, 2)),
    ],
)
def test_each_mistake_in_the_loss_has_its_code(returned, code, ranks):
    found = first_diagnosis(
        Observation(3, tuple(returned), (), (), 0.0), [3.0] * 3, loss_mistakes(OWN, 2.5, "Steps")
    )

    assert (found.code, found.ranks, found.guide) == (code, ranks, "Steps")


def test_only_a_loss_that_was_never_reduced_is_at_the_line_that_returns_it():
    def where(returned):
        seen = Observation(3, tuple(returned), (), (), 0.0)
        rules = loss_mistakes(OWN, 2.5, "Steps", "trainer.py:9")
        return first_diagnosis(seen, [3.0] * 3, rules).where

    assert where(OWN) == "trainer.py:9"
    assert where([9.0] * 3) is None
