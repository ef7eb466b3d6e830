"""Mistakes in the order of a training step, recognised by its calls."""

import pytest
import torch
from torch import nn

from gradsync.records import Diagnosis, Failure, Observation
from support.probes.steps import traced_step
from support.rules.steps import averaged_too_late, batch_swapped, without_its_gradient

RIGHT = [("backward", -2.0), ("step", -7.0)]


def observed(*weights):
    return Observation(len(weights), weights, (), ("",) * len(weights), 0.1)


def diagnose(calls, weight=0.0):
    return without_its_gradient([RIGHT, calls], "Steps")(observed(0.7, weight), [0.7] * 2)


def test_a_model_that_gets_the_targets_is_reported():
    text = "mat1 and mat2 must have the same dtype, but got Long and Double"
    known = Diagnosis("exception", (0,), text)
    failed, other = (
        Observation(1, (None,), (), ("",), 0.1, Failure("error", known, "RuntimeError", detail))
        for detail in (text, "no grad_fn")
    )

    assert "A batch is `(inputs, targets)`" in batch_swapped(failed, None).explanation
    assert batch_swapped(other, None) is None


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([("step", None)], "`backward()` is not called"),
        ([("step", -2.0), ("backward", -2.0)], "before `backward()`"),
        ([("backward", -2.0), ("step", None)], "the gradient -2, but the gradient is None when"),
        ([("backward", -2.0), ("step", 0.0)], "the gradient -2, but the gradient is 0 when"),
        ([*RIGHT, ("backward", -1.0), ("step", 0.0)], "computes the gradient -1, but"),
    ],
)
def test_a_step_without_the_gradient_of_its_batch_is_reported(calls, said):
    found = diagnose(calls)

    assert (found.code, found.ranks, found.where) == ("does-not-learn", (1,), None)
    assert said in found.explanation


def test_a_step_that_is_never_taken_is_reported_if_no_weight_changes():
    rule = without_its_gradient([[("backward", -2.0)]] * 2, "Steps")

    assert "`optimizer.step()` is not called" in rule(observed(0.0, 0.0), [0.7] * 2).explanation
    assert rule(observed(1.4, 1.4), [0.7] * 2) is None


def test_a_right_order_and_a_failed_run_get_no_diagnosis():
    assert diagnose(RIGHT) is None
    assert diagnose([("backward", 0.0), ("step", 0.0)]) is None
    assert without_its_gradient([[]], "Steps")(observed(None), None) is None


@pytest.mark.parametrize(
    ("used", "after", "code"),
    [
        ((-2.0, -12.0), (-7.0, -7.0), "gradients-not-synchronised"),
        ((-2.0, -12.0), (-2.0, -12.0), None),  # never averaged
        ((-7.0, -7.0), (-7.0, -7.0), None),
        ((-14.0, -14.0), (-7.0, -7.0), None),
    ],
)
def test_gradients_that_are_averaged_after_the_step_are_reported(used, after, code):
    calls = [
        [("backward", own), ("step", then)] for own, then in zip((-2.0, -12.0), used, strict=True)
    ]

    found = averaged_too_late(calls, after, "Steps")(observed(0.2, 1.2), [0.7] * 2)

    assert (found and found.code) == code


def test_a_single_rank_does_not_average_too_late():
    assert averaged_too_late([RIGHT], [-2.0], "Steps")(observed(0.2), [0.7]) is None


def one_weight():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_step_is_traced_with_its_gradients_and_the_line_that_returns():
    def train_step(model, batch, loss_fn, optimizer):
        optimizer.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        optimizer.step()
        return 1.0

    model, optimizer = one_weight()
    batch = (torch.ones(1, 1), torch.ones(1, 1))
    seen = [traced_step(train_step, model, optimizer, batch) for _ in range(2)]

    assert seen[0]["calls"] == [("backward", -2.0), ("step", -2.0)]
    assert [len(step["calls"]) for step in seen] == [2, 2]  # the first step's hooks are removed
    line = train_step.__code__.co_firstlineno + 4
    assert seen[0]["line"] == f"test_steps.py:{line}"
    assert (seen[0]["after"], seen[0]["loss"]) == (-2.0, 1.0)
