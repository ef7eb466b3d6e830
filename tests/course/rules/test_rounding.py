"""Values that were rounded to a lower precision, as opposed to other wrong values."""

import numpy as np
import pytest
import torch

from gradsync.records import Observation
from gradsync.testing.rules import first_diagnosis
from gradsync.testing.values import close
from support.rules.rounding import OF_FLOAT64, rounded, rounded_loss

RULES = [rounded("the sum over the ranks", "The ring")]
DOUBLES = torch.tensor([1 / 3, -2 / 3, 1 / 7], dtype=torch.float64)


def diagnose(value, wanted):
    seen = Observation(2, ({"tensors": [wanted]}, {"tensors": [value]}), (), (), 0.0)
    return first_diagnosis(seen, [{"tensors": [wanted]}] * 2, RULES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_rounded_to_a_lower_precision_are_recognised(dtype):
    assert diagnose(DOUBLES.to(dtype).double(), DOUBLES).code == "shape-mismatch"


def test_integers_rounded_to_float32_are_recognised():
    integers = np.array([2**40 + 1, 2**41 + 3])

    assert diagnose(integers.astype(np.float32).astype(np.int64), integers).ranks == (0, 1)


@pytest.mark.parametrize("value", [DOUBLES * 1.05, DOUBLES.flip(0), DOUBLES[:2], None, "DOUBLES"])
def test_values_that_no_dtype_explains_are_another_mistake(value):
    assert diagnose(value, DOUBLES) is None


def test_numbers_that_every_dtype_has_exactly_were_not_rounded():
    assert diagnose(torch.tensor([100.5, 64.0]), torch.tensor([101.0, 64.0])) is None


def test_a_failed_run_gets_no_diagnosis():
    seen = Observation(2, (None, None), (), (), 0.0)

    assert first_diagnosis(seen, None, RULES) is None


def test_float64_is_finer_than_float32_and_coarser_than_its_own_roundings():
    assert close(DOUBLES * (1 + 2.0**-50), DOUBLES, OF_FLOAT64)
    assert not close(DOUBLES.float().double(), DOUBLES, OF_FLOAT64)


@pytest.mark.parametrize(
    ("losses", "known"),
    [((2.29, 2.29), True), ((2.0, 2.0), True), ((1.29, 1.29), False), ((2.29, 2.2871), False)],
)
def test_a_loss_with_few_digits_is_recognised(losses, known):
    seen = Observation(2, losses, (), (), 0.0)

    diagnosis = first_diagnosis(seen, [2.28712345] * 2, [rounded_loss("train_step", "The step")])

    assert (diagnosis is not None) == known
