"""Mistakes in averaging gradients, recognised by the ranks' gradients after the call."""

import numpy as np
import pytest

from gradsync.records import Collective, Diagnosis, Event, Failure, Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.absent_gradients import frozen_mistakes, none_gradient_skipped
from support.rules.gradients import (
    always_divided_by,
    digits_lost,
    gradient_mistakes,
    wrong_scale,
)

RNG = np.random.default_rng(1)
LOCAL = [{"weight": RNG.standard_normal((3, 2)), "bias": RNG.standard_normal(3)} for _ in range(4)]


def total(local=LOCAL):
    return {name: np.sum([gradients[name] for gradients in local], axis=0) for name in local[0]}


def times(gradients, factor):
    return {name: factor * gradient for name, gradient in gradients.items()}


MEAN = times(total(), 1 / 4)


def observed(values, events=(), failure=None):
    return Observation(4, tuple(values), tuple(events), ("",) * 4, 0.1, failure)


def diagnose(values, rules=None, expected=MEAN, **seen):
    rules = gradient_mistakes(LOCAL) if rules is None else rules
    return first_diagnosis(observed(values, **seen), [expected] * 4, rules)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        (LOCAL, "gradients-not-synchronised"),
        ([times(gradients, 1 / 4) for gradients in LOCAL], "gradients-not-synchronised"),
        ([total()] * 4, "sum-not-mean"),
        ([times(MEAN, 2)] * 4, "sum-not-mean"),
        ([times(MEAN, 1 / 4)] * 4, "divided-twice"),
        ([times(MEAN, 1 / 2)] * 4, "divided-twice"),
        ([MEAN, total(), total(), total()], "sum-not-mean"),
        ([MEAN, *LOCAL[1:]], "only-one-rank-has-it"),
        ([LOCAL[0]] * 4, "gradients-not-synchronised"),
        ([times(LOCAL[3], 1 / 4)] * 4, "gradients-not-synchronised"),
        ([{**MEAN, "bias": MEAN["bias"][::-1]}] * 4, "differs-from-single-process"),
        ([{**MEAN, "bias": mine["bias"]} for mine in LOCAL], "only-some-parameters"),
        ([{**MEAN, "bias": np.ones(3)}] * 4, "only-some-parameters"),
        (
            [{n: np.clip(g, -0.2, 0.2) for n, g in MEAN.items()}] * 4,
            "differs-from-single-process",
        ),
        ([{n: g.astype(np.float16) for n, g in MEAN.items()}] * 4, "shape-mismatch"),
    ],
)
def test_each_mistake_has_its_code(values, code):
    assert diagnose(values).code == code


def test_the_number_of_right_digits_is_reported():
    rounded = {name: gradient.astype(np.float16) for name, gradient in MEAN.items()}

    assert "accurate to only about 3 digits" in diagnose([rounded] * 4).explanation
    assert digits_lost(observed([MEAN] * 4), [MEAN] * 4) is None


def test_a_wrong_small_gradient_is_not_called_rounded():
    expected = {**MEAN, "bias": MEAN["bias"] * 1e-3}

    values = [{**expected, "bias": np.zeros(3)}] * 4

    assert diagnose(values, expected=expected).code == "only-some-parameters"


@pytest.mark.parametrize("extreme", [np.max, np.min, np.prod])
def test_another_reduction_is_not_a_mean_even_if_divided(extreme):
    wrong = {name: extreme([mine[name] for mine in LOCAL], axis=0) for name in MEAN}

    assert diagnose([wrong] * 4).code == "sum-not-mean"
    assert ", divided by 4" in diagnose([times(wrong, 1 / 4)] * 4).explanation


def test_any_change_of_a_frozen_gradient_is_reported():
    stale = np.arange(4.0).reshape(2, 1, 2)
    taken = Observation(2, ([stale[0], True], [None, True]), (), (), 0.0)

    found = first_diagnosis(taken, [[own, True] for own in stale], frozen_mistakes(stale))

    assert (found.code, found.ranks) == ("frozen-touched", (1,))
    assert "or removed" in found.explanation


def test_the_rank_whose_gradients_all_ranks_have_is_named():
    explanation = diagnose([times(LOCAL[3], 1 / 4)] * 4).explanation

    assert explanation.startswith("Every rank ends with the gradients of rank 3, divided by 4.")


@pytest.mark.parametrize("factor", [1, 1 / 2, 1 / 4])
def test_a_mean_over_some_ranks_is_reported_with_its_group(factor):
    two = times(total(LOCAL[:2]), factor)
    event = Event(
        0, "enter", 0, 0.0, 1, collective=Collective("all_reduce", "1", (0, 1), where="t.py:7")
    )

    diagnosis = diagnose([two, two, LOCAL[2], times(LOCAL[3], 1 / 4)], events=[event])

    assert diagnosis.code == "gradients-not-synchronised"
    assert "in a process group of only ranks 0 and 1." in diagnosis.explanation
    assert "Ranks 0 and 1 end with the gradients of ranks 0 and 1; rank 2" in diagnosis.explanation


def test_a_mean_with_elements_in_wrong_places_is_recognised():
    flat = np.concatenate([MEAN["weight"].reshape(-1), MEAN["bias"]])
    apart = {"bias": flat[:3], "weight": flat[3:].reshape(3, 2)}

    diagnosis = diagnose([apart] * 4)

    assert diagnosis.code == "differs-from-single-process"
    assert "in the wrong places (in the gradients of weight and bias)." in diagnosis.explanation


def test_a_tiny_number_in_place_of_zero_is_not_called_misplaced():
    half = {**MEAN, "bias": np.zeros(3)}

    diagnosis = diagnose([{**half, "bias": np.full(3, 1e-12)}] * 4, expected=half)

    assert diagnosis.code == "only-some-parameters"


def test_unknown_mistakes_get_no_diagnosis():
    noise = [{name: RNG.standard_normal(g.shape) for name, g in MEAN.items()} for _ in range(4)]

    assert diagnose(noise) is None


def test_only_wrong_ranks_are_named():
    diagnosis = diagnose([MEAN, total(), total(), MEAN])

    assert (diagnosis.code, diagnosis.ranks) == ("sum-not-mean", (1, 2))
    assert diagnosis.explanation.startswith("On ranks 1 and 2, every gradient is exactly 4 times")


def test_a_sum_is_shown_with_its_factor_and_the_line_of_the_all_reduce():
    reduce = Collective("all_reduce", "world", (0, 1, 2, 3), where="template_trainer.py:91")

    diagnosis = diagnose([total()] * 4, events=[Event(0, "enter", 0, 0.0, 1, collective=reduce)])

    assert diagnosis.where == "template_trainer.py:91"
    assert "exactly 4 times the mean" in diagnosis.explanation
    assert "template_trainer.py:91" in diagnosis.explanation


def test_a_tiny_number_in_place_of_zero_is_not_a_factor():
    spare = {**MEAN, "spare": np.zeros(3)}
    values = [{**spare, "spare": np.full(3, 1e-9)}] * 4

    assert first_diagnosis(observed(values), [spare] * 4, [wrong_scale]) is None


@pytest.mark.parametrize(("factor", "made"), [(2, "divided by 2"), (16, "multiplied by 4")])
def test_other_factors_are_reported_with_their_value(factor, made):
    explanation = diagnose([times(MEAN, factor)] * 4).explanation

    assert f"the sum was {made}. Divide it by the number of ranks, 4" in explanation


@pytest.mark.parametrize(
    ("norm", "text"),
    [
        (0.3, "all gradients together is 0.3: they were scaled"),
        (0.1, "together is 0.1: they"),
        (0.1234, "0.2327 times the mean"),
    ],
)
def test_gradients_with_another_small_factor_were_not_divided_twice(norm, text):
    length = np.sqrt(sum((part**2).sum() for part in MEAN.values()))

    found = diagnose([times(MEAN, norm / length)] * 4)

    assert found.code == "differs-from-single-process"
    assert text in found.explanation


WITHOUT = (1, 2)
SKIPPED = none_gradient_skipped(WITHOUT, "bias")


@pytest.mark.parametrize(
    "biases",
    [
        [MEAN["bias"], None, None, MEAN["bias"]],
        [2 * MEAN["bias"]] * 4,  # divided by the number of ranks that had one
        [MEAN["bias"] + 1] * 4,  # the other two contributed values
        [np.full(3, np.nan)] * 4,
    ],
)
def test_a_missing_gradient_that_does_not_count_as_zero_is_reported(biases):
    diagnosis = diagnose([{**MEAN, "bias": bias} for bias in biases], [SKIPPED])

    assert (diagnosis.code, diagnosis.ranks) == ("none-gradient-skipped", WITHOUT)


@pytest.mark.parametrize("having", [2, 1])
def test_the_number_of_ranks_with_a_gradient_is_named_as_the_divisor(having):
    without = range(having, 4)
    summed = [{**MEAN, "bias": 4 / having * MEAN["bias"]}] * 4

    diagnosis = diagnose(summed, [none_gradient_skipped(without, "bias")])

    assert f"divided by {having}, the number of ranks that had one" in diagnosis.explanation


def test_a_parameter_that_no_rank_averages_is_another_mistake():
    own = [{**MEAN, "bias": np.full(3, float(rank))} for rank in range(4)]

    assert diagnose(own, [SKIPPED, *gradient_mistakes(LOCAL)]).code == "only-some-parameters"


def deadlock(last):
    """Return a deadlock in which these ranks entered a last collective with these shapes."""
    events = [
        Event(rank, "enter", 0, 0.0, 1, collective=Collective("all_reduce", "w", (), (shape,)))
        for rank, shape in last.items()
    ]
    missing = tuple(set(range(4)) - set(last)) or WITHOUT
    known = Diagnosis("deadlock-rank-missing", missing, "Ranks 1 and 2 returned.", "trainer.py:9")
    return observed([None] * 4, events, Failure("deadlock", known))


@pytest.mark.parametrize("last", [{0: (3,), 1: (3, 2), 2: (3, 2), 3: (3,)}, {0: (3,), 3: (3,)}])
def test_a_deadlock_caused_by_a_missing_gradient_is_explained(last):
    diagnosis = SKIPPED(deadlock(last), None)

    assert diagnosis.code == "none-gradient-skipped"
    assert diagnosis.explanation.startswith("Ranks 1 and 2 returned. Ranks 1 and 2 had no gradient")
    assert diagnosis.where == "trainer.py:9"


@pytest.mark.parametrize("last", [{0: (3, 2)}, {0: (3,), 1: (3,), 3: (3, 2)}])
def test_another_deadlock_is_not_explained_by_a_missing_gradient(last):
    assert SKIPPED(deadlock(last), None) is None


def test_a_barrier_of_some_ranks_is_not_explained_by_a_missing_gradient():
    barrier, reduce = Collective("barrier", "w", ()), Collective("all_reduce", "w", (), ((3,),))
    events = [
        Event(rank, "enter", 0, 0.0, 1, collective=reduce if rank in WITHOUT else barrier)
        for rank in range(4)
    ]
    for code in ("deadlock-order-differs", "deadlock-rank-missing"):
        known = Diagnosis(code, WITHOUT, "ranks call different collectives", "trainer.py:9")

        assert SKIPPED(observed([None] * 4, events, Failure("deadlock", known)), None) is None


def test_a_wait_for_another_gradient_is_not_explained_by_a_missing_one():
    reduce = Collective("all_reduce", "w", (), ((3,),), label="weight.grad")
    events = [Event(rank, "enter", 0, 0.0, 1, collective=reduce) for rank in (0, 3)]
    known = Diagnosis("deadlock-rank-missing", WITHOUT, "Ranks 1 and 2 returned.", "trainer.py:9")

    assert SKIPPED(observed([None] * 4, events, Failure("deadlock", known)), None) is None


def test_a_constant_divisor_is_reported():
    def again(divisor):
        ended = tuple([times(total(LOCAL[:2]), 1 / divisor)] * 2)
        return lambda: (Observation(2, ended, (), ("",) * 2, 0.1), LOCAL[:2])

    by_3 = [times(MEAN, 4 / 3)] * 4

    found = diagnose(by_3, [always_divided_by(4, again(3))])

    assert found.code == "sum-not-mean"
    assert "divided by 3, both on 4 ranks and on 2" in found.explanation
    assert diagnose(by_3, [always_divided_by(4, again(2))]) is None
    assert diagnose([times(MEAN, 4)] * 4, [always_divided_by(4, again(1))]) is None


def test_gradients_that_are_all_zero_are_reported():
    found = diagnose([times(MEAN, 0)] * 4)

    assert found.code == "gradients-not-synchronised"
    assert "Every gradient is zero" in found.explanation
