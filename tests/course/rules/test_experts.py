"""Outputs of a layer of experts: right ones pass, each known mistake is named."""

import pytest
import torch

from gradsync.records import Observation
from support.probes.experts import dense, expert_of
from support.rules.experts import output_mistake

TOKENS, EXPERTS, WIDTH = (3, 4), 4, 5


@pytest.fixture
def right():
    """Return the outputs of one process, and all that a rule compares with."""
    torch.manual_seed(1)
    inputs = [torch.randn(count, WIDTH) for count in TOKENS]
    states = [expert_of(WIDTH, 7).state_dict() for _ in range(EXPERTS)]
    drawn = {"inputs": inputs, "upstream": [torch.ones_like(part) for part in inputs]}
    return dense({"router": torch.randn(EXPERTS, WIDTH), "states": states, **drawn})


def diagnose(outputs, right):
    values = tuple({"output": output} for output in outputs)
    return output_mistake(Observation(2, values, (), ("", ""), 0.1), right)


def test_right_outputs_pass(right):
    assert diagnose(right["output"], right) is None


def others(right):
    """Return what the expert after the chosen one computes of each token."""
    pairs = zip(right["every"], right["chosen"], strict=True)
    return [every[range(len(every)), (chosen + 1) % EXPERTS] for every, chosen in pairs]


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (lambda r: r["plain"], "probability-not-applied", "not multiplied by the router's"),
        (lambda r: [part * 2 for part in r["output"]], None, "its expert's result times"),
        (lambda r: [part * part for part in r["output"]], None, "not a multiple of its expert's"),
        (lambda r: [part.flip(0) for part in r["output"]], "tokens-misplaced", "of another token"),
        (lambda r: [0 * part for part in r["output"]], "tokens-lost", "is 0: it is lost"),
        (others, "wrong-experts", "has computed it"),
    ],
)
def test_outputs_get_their_code(right, change, code, named):
    found = diagnose(change(right), right)

    assert found.code == (code or "differs-from-single-process")
    assert named in found.explanation


def test_a_wrong_factor_is_shown_beside_the_right_one(right):
    outputs = [part.clone() for part in right["plain"]]
    outputs[0] = right["output"][0]
    outputs[1][0] *= 0.25

    found = diagnose(outputs, right)

    assert found.ranks == (1,)
    assert "The output of token 0 of rank 1 is its expert's result times 0.25." in found.explanation
    probability = float((right["output"][1][0] / right["plain"][1][0]).mean())
    assert f"of this expert, {probability:.4g}" in found.explanation
