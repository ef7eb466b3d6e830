"""The rules on parallel layers, given what the layers compute."""

import pytest
import torch

from gradsync.records import Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.parallel_layers import (
    bias_left_behind,
    column_input_mistake,
    diagnose_beginning,
    diagnose_gathering,
    diagnose_refusals,
    layer_gradient_mistakes,
    row_bias_mistake,
    row_input_mistake,
    row_output_mistakes,
    unlike_linear,
)

WEIGHT = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
BIAS = torch.tensor([10.0, 20.0])
INPUTS = torch.tensor([[1.0, 4.0]])
OUTPUTS = INPUTS @ WEIGHT.T + BIAS
PRODUCTS = [INPUTS[:, :1] @ WEIGHT[:, :1].T, INPUTS[:, 1:] @ WEIGHT[:, 1:].T]
FULL = {"weight": WEIGHT, "bias": BIAS, "inputs": INPUTS}


def diagnose(values, expected, rules):
    return first_diagnosis(Observation(2, tuple(values), (), (), 0.0), expected, rules)


@pytest.mark.parametrize(
    ("values", "code", "ranks"),
    [
        ([None, BIAS], "backward-not-reduced", (0,)),
        ([2 * BIAS] * 2, "differs-from-single-process", (0, 1)),
        ([BIAS / 2] * 2, "differs-from-single-process", (0, 1)),
        ([BIAS, BIAS + 1], "differs-from-single-process", (1,)),
    ],
)
def test_a_wrong_gradient_is_diagnosed(values, code, ranks):
    diagnosis = diagnose(values, [BIAS] * 2, layer_gradient_mistakes("bias", [BIAS] * 2))

    assert (diagnosis.code, diagnosis.ranks) == (code, ranks)


def test_an_inputs_gradient_that_was_not_summed_is_recognised():
    upstream = torch.ones(1, 2)
    whole = upstream @ WEIGHT
    rule = column_input_mistake(upstream, WEIGHT, 2)

    diagnosis = diagnose([WEIGHT[:1], WEIGHT[1:]], [whole] * 2, [rule])

    assert diagnosis.code == "backward-not-reduced"
    assert diagnose([whole] * 2, [whole] * 2, [rule]) is None


def test_an_inputs_gradient_with_only_one_slice_is_recognised():
    whole = torch.tensor([[1.0, 2.0]])
    slices = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])]

    diagnosis = diagnose(slices, [whole] * 2, [row_input_mistake(whole, 2)])

    assert diagnosis.code == "backward-not-reduced"


def test_a_fraction_of_the_bias_on_every_rank_is_recognised():
    diagnosis = diagnose([BIAS / 2] * 2, [BIAS] * 2, [row_bias_mistake(BIAS, 2)])

    assert diagnosis.code == "bias-added-per-rank"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([OUTPUTS + BIAS] * 2, "bias-added-per-rank"),
        ([(OUTPUTS - BIAS) / 2 + BIAS] * 2, "differs-from-single-process"),
        (PRODUCTS, "differs-from-single-process"),
    ],
)
def test_wrong_outputs_of_a_row_layer_are_diagnosed(values, code):
    diagnosis = diagnose(values, [OUTPUTS] * 2, row_output_mistakes(FULL, OUTPUTS, 2))

    assert diagnosis.code == code


@pytest.mark.parametrize(
    ("gradients", "with_a_bias", "ranks"),
    [
        ([BIAS, None], [True, True], (1,)),
        ([0 * BIAS, BIAS], [True, True], (0,)),
        ([BIAS, None], [True, False], None),
        ([BIAS, BIAS], [True, True], None),
        ([None, None], [True, True], None),  # no gradient at all is a different mistake
    ],
)
def test_a_bias_that_one_rank_adds_for_all_is_recognised_if_others_have_one(
    gradients, with_a_bias, ranks
):
    pairs = zip(gradients, with_a_bias, strict=True)

    diagnosis = bias_left_behind([{"bias": grad, "trains_bias": has} for grad, has in pairs])

    assert (diagnosis and (diagnosis.code, diagnosis.ranks)) == (
        ranks and ("only-one-rank-has-it", ranks)
    )


def test_ranks_with_other_values_are_named():
    diagnosis = diagnose([OUTPUTS, OUTPUTS + 1], [OUTPUTS] * 2, [unlike_linear("The output")])

    assert (diagnosis.code, diagnosis.ranks) == ("differs-from-single-process", (1,))


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        (["ValueError: no", None], None),
        ([None, None], "bad-arguments-accepted"),
        (["AssertionError", None], "bad-arguments-accepted"),
        (["ValueError: no", "ValueError: no"], "differs-from-single-process"),
    ],
)
def test_only_sizes_that_cannot_be_split_must_be_refused(errors, code):
    diagnosis = diagnose_refusals([errors, errors], "out_features")

    assert (diagnosis and diagnosis.code) == code


NEW = {"weight": torch.tensor([0.5, -0.25]), "outputs": torch.tensor([[1.0]])}


@pytest.mark.parametrize(
    ("other", "ranks"),
    [
        (NEW, None),
        ({**NEW, "weight": torch.tensor([0.125, 0.5])}, None),
        ({**NEW, "weight": torch.zeros(2)}, (1,)),
        ({**NEW, "weight": None}, (1,)),
        ({**NEW, "outputs": torch.tensor([[float("nan")]])}, (1,)),
        ({**NEW, "outputs": torch.tensor([[1.5]])}, (0, 1)),
    ],
)
def test_new_layers_are_random_and_compute_the_same_on_every_rank(other, ranks):
    diagnosis = diagnose_beginning([NEW, other], "The bias must be the same.")

    assert (diagnosis and diagnosis.ranks) == ranks


@pytest.mark.parametrize(("width", "ranks"), [(6, None), (3, (1,))])
def test_ranks_whose_outputs_are_not_gathered_are_named(width, ranks):
    new = [{"outputs": torch.ones((2, 6))}, {"outputs": torch.ones((2, width))}]

    diagnosis = diagnose_gathering(new, 6)

    assert (diagnosis and (diagnosis.code, diagnosis.ranks)) == (
        ranks and ("parameters-not-gathered", ranks)
    )
