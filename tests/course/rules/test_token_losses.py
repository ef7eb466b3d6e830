"""The weights of tokens: each wrong weight gets its code, and the right one passes."""

import numpy as np
import pytest

from gradsync.records import Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.token_losses import WRONG, gradients, loss_mistakes

IGNORED = -100
LOGITS = np.random.default_rng(0).standard_normal((3, 4, 5))
TARGETS = np.array([[0, 1, 2, IGNORED], [4, IGNORED, IGNORED, IGNORED], [1, 1, IGNORED, IGNORED]])


def code_of(seen):
    right = list(gradients(LOGITS, TARGETS, IGNORED))
    observation = Observation(3, tuple(seen), (), ("",) * 3, 0.0, None, (0, 1, 2))
    found = first_diagnosis(observation, right, loss_mistakes(LOGITS, TARGETS, IGNORED))
    return found.code


@pytest.mark.parametrize(("weigh", "code", "_text"), WRONG, ids=[one[2][:40] for one in WRONG])
def test_a_wrong_weight_gets_its_code(weigh, code, _text):
    assert code_of(gradients(LOGITS, TARGETS, IGNORED, weigh)) == code


def test_gradients_of_ignored_tokens_are_recognised():
    assert code_of(gradients(LOGITS, TARGETS, IGNORED) + 0.1) == "ignored-tokens-counted"
