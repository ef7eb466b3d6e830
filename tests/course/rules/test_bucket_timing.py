"""The rules on buckets that are sent too early, or changed while they are averaged."""

import numpy as np
import pytest

from gradsync.records import Diagnosis, Failure, Observation
from support.rules.bucket_timing import (
    empty_in_hook,
    hooks_too_early,
    left_too_early,
    overwritten,
    seen_too_early,
)

EARLIER = [{"weight": np.array([1.0, 2.0]), "bias": np.array([r + 3.0])} for r in range(2)]
MEAN = {"weight": np.array([5.0, 6.0]), "bias": np.array([7.0])}


def observed(biases):
    values = [{**MEAN, "bias": np.array([bias])} for bias in biases]
    return Observation(2, tuple(values), (), ("", ""), 0.1)


@pytest.mark.parametrize(
    ("biases", "beginning"),
    [
        ((0.0, 0.0), "The gradients of bias are zero"),
        ((3.5, 3.5), "The gradients of bias are the mean of `grad`"),
        ((3.0, 4.0), "The gradients of bias are still `grad`"),
    ],
)
def test_a_gradient_as_it_was_before_was_sent_too_early(biases, beginning):
    diagnosis = left_too_early(EARLIER, "accumulation-lost")(observed(biases), [MEAN] * 2)

    assert diagnosis.code == "accumulation-lost"
    assert diagnosis.explanation.startswith(beginning)
    assert "The hook must see the final gradient" in diagnosis.explanation


@pytest.mark.parametrize("biases", [(7.0, 7.0), (0.0, 7.0), (14.0, 14.0), (4.0, 3.0)])
def test_any_other_gradient_was_not_sent_too_early(biases):
    rule = left_too_early(EARLIER, "accumulation-lost")

    assert rule(observed(biases), [MEAN] * 2) is None


def test_if_all_gradients_are_as_before_the_mistake_may_be_a_different_one():
    seen = Observation(2, tuple(EARLIER), (), ("", ""), 0.1)

    assert left_too_early(EARLIER, "accumulation-lost")(seen, [MEAN] * 2) is None


@pytest.mark.parametrize(("biases", "known"), [((9.0, 8.0), True), ((3.0, 4.0), False)])
def test_gradients_neither_right_nor_local_were_changed_by_a_second_backward(biases, known):
    diagnosis = overwritten(EARLIER)(observed(biases), [MEAN] * 2)

    assert (diagnosis is not None) == known
    if known:
        assert diagnosis.code == "only-some-parameters"
        assert "Overwriting a bucket that is being sent" in diagnosis.explanation


@pytest.mark.parametrize(
    ("source", "early"),
    [
        ("p.register_hook(f)", True),
        ("p.register_post_accumulate_grad_hook(f)", False),
        ("handle = model.register_forward_hook(f)", False),
    ],
)
def test_only_hooks_that_run_before_grad_is_set_are_too_early(source, early):
    assert hooks_too_early(source) is early


@pytest.mark.parametrize(
    ("biases", "stale"), [((0.0, 0.0), True), ((3.0, 4.0), True), ((9.0, 9.0), False)]
)
def test_hooks_that_run_too_early_explain_wrong_gradients(biases, stale):
    first, other = (rule(observed(biases), [MEAN] * 2) for rule in seen_too_early(EARLIER))

    assert (first is not None) is stale
    assert "the gradients of bias are not the mean" in other.explanation


@pytest.mark.parametrize(("detail", "explained"), [("'NoneType' / 'int'", True), ("1 / 0", False)])
def test_a_gradient_that_is_none_in_a_hook_is_explained(detail, explained):
    failure = Failure("error", Diagnosis("exception", (0,), "Rank 0 raised."), detail=detail)
    found = empty_in_hook(Observation(1, (None,), (), (), 0.0, failure), None)

    assert (found is not None and "A hook of `register_hook`" in found.explanation) is explained
