"""Mistakes in an evaluation that do not depend on its samples."""

import pytest
import torch

from gradsync.records import Collective, Event, Observation
from support.probes.evaluation import Spy, spied_evaluation, tells_predictions_apart
from support.rules.evaluation import (
    differs_across_ranks,
    evaluated_too_few,
    kept_from_before,
    learned_from,
    mode_not_restored,
    other_keys,
    own_samples_alone,
    predicts_otherwise,
)

GUIDE = "Evaluation"
RESULT = {"loss": 1.0, "accuracy": 0.5, "samples": 4}
INPUTS = torch.zeros(2, 4, dtype=torch.float64)


def seen_of(evaluate, ranks=2):
    return [spied_evaluation(rank, evaluate) for rank in range(ranks)]


def rightly(model, loss_fn):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        model(INPUTS)
    for module, mode in modes.items():
        module.training = mode
    return RESULT


def restoring_the_top_mode_alone(model, loss_fn):
    was = model.training
    model.eval()
    rightly(model, loss_fn)
    model.eval().training = was
    return RESULT


def in_training_mode(model, loss_fn):
    with torch.no_grad():
        model.train()(INPUTS)
    return RESULT


def with_a_layer_in_training_mode(model, loss_fn):
    with torch.no_grad():
        model.training = False
        model(INPUTS)
    return RESULT


def with_gradients(model, loss_fn):
    model.eval()(INPUTS)
    return RESULT


def without_the_gradients_from_before(model, loss_fn):
    rightly(model, loss_fn)
    model.zero_grad()
    return RESULT


def frozen_ever_after(model, loss_fn):
    model.requires_grad_(False)
    return rightly(model, loss_fn)


def unfrozen_ever_after(model, loss_fn):
    rightly(model, loss_fn)
    model.requires_grad_(True)
    return RESULT


def not_at_all(model, loss_fn):
    return RESULT


def tracking_no_more(model, loss_fn):
    torch.set_grad_enabled(False)
    return rightly(model, loss_fn)


def tracking_switched(model, loss_fn):
    torch.set_grad_enabled(False)
    rightly(model, loss_fn)
    torch.set_grad_enabled(True)
    return RESULT


def changing_the_loss(model, loss_fn):
    loss_fn.reduction = "sum"
    return rightly(model, loss_fn)


@pytest.mark.parametrize("evaluate", [rightly, tracking_switched])
def test_an_evaluation_that_restores_everything_is_right(evaluate):
    seen = seen_of(evaluate)

    assert learned_from(seen, GUIDE) is None
    assert mode_not_restored(seen, GUIDE) is None
    assert other_keys([value["result"] for value in seen], GUIDE) is None


@pytest.mark.parametrize(
    ("evaluate", "code"),
    [
        (in_training_mode, "mode-not-restored"),
        (with_a_layer_in_training_mode, "mode-not-restored"),
        (with_gradients, "gradients-touched"),
        (without_the_gradients_from_before, "gradients-touched"),
        (frozen_ever_after, "gradients-touched"),
        (unfrozen_ever_after, "gradients-touched"),
        (not_at_all, "differs-from-single-process"),
    ],
)
def test_changes_during_an_evaluation_are_reported(evaluate, code):
    assert learned_from(seen_of(evaluate), GUIDE).code == code


@pytest.mark.parametrize(
    ("evaluate", "ranks"),
    [
        (with_gradients, (0,)),
        (in_training_mode, (1,)),
        (restoring_the_top_mode_alone, (0,)),
        (tracking_no_more, (0, 1)),
        (changing_the_loss, (0, 1)),
        (not_at_all, ()),
    ],
)
def test_the_ranks_whose_mode_was_lost_are_named(evaluate, ranks):
    assert mode_not_restored(seen_of(evaluate), GUIDE).ranks == ranks


def test_a_module_whose_mode_is_not_restored_is_named():
    diagnosis = mode_not_restored(seen_of(restoring_the_top_mode_alone), GUIDE)

    assert diagnosis.code == "mode-not-restored"
    assert "the module layer" in diagnosis.explanation


@pytest.mark.parametrize(
    ("losses", "code"), [((1.0, 2.0), "only-one-rank-has-it"), ((2.0, 3.0), "loss-is-local")]
)
def test_numbers_that_differ_between_ranks_are_distinguished(losses, code):
    values = tuple({**RESULT, "loss": loss} for loss in losses)
    seen = Observation(2, values, events=(), output=("", ""), seconds=0.0)

    assert differs_across_ranks(GUIDE)(seen, [RESULT, RESULT]).code == code


@pytest.mark.parametrize("ops", [["all_reduce"], []])
def test_a_sum_that_is_not_returned_is_reported_with_its_line(ops):
    own = [{**RESULT, "loss": loss} for loss in (2.0, 3.0)]
    events = [
        Event(0, "enter", 0, 0.0, 1, collective=Collective(op, "world", (0, 1), where="t.py:7"))
        for op in ops
    ]
    seen = Observation(2, tuple(own), tuple(events), output=("", ""), seconds=0.0)

    diagnosis = own_samples_alone(own, GUIDE)(seen, [RESULT, RESULT])

    assert (diagnosis.code, diagnosis.ranks) == ("loss-is-local", (0, 1))
    assert ("t.py:7" in diagnosis.explanation) == bool(ops)
    assert own_samples_alone([RESULT, own[1]], GUIDE)(seen, [RESULT, RESULT]) is None


@pytest.mark.parametrize("counted", [True, False])
def test_sums_that_each_rank_divides_by_a_different_number_are_reported(counted):
    values = tuple(
        {"loss": 4.0 / n, "accuracy": 2 / n, "samples": n if counted else 4} for n in (3, 4)
    )
    seen = Observation(2, values, events=(), output=("", ""), seconds=0.0)

    diagnosis = differs_across_ranks(GUIDE)(seen, [RESULT, RESULT])

    assert (diagnosis.code, diagnosis.ranks) == ("differs-from-single-process", (0,))
    assert "ranks 0 and 1 divide them by 3 and 4 instead of 4" in diagnosis.explanation


@pytest.mark.parametrize("loss", [float("nan"), 0.0, 1e300])
def test_losses_that_no_division_explains_are_not_called_divided(loss):
    values = ({**RESULT, "loss": loss}, {**RESULT, "loss": 3.0})
    seen = Observation(2, values, events=(), output=("", ""), seconds=0.0)

    assert differs_across_ranks(GUIDE)(seen, [RESULT, RESULT]).code == "loss-is-local"


def test_a_wrong_number_of_samples_is_reported_if_the_rest_is_right():
    values = tuple({**RESULT, "samples": samples} for samples in (2, 3))
    seen = Observation(2, values, events=(), output=("", ""), seconds=0.0)

    diagnosis = differs_across_ranks(GUIDE)(seen, [RESULT, RESULT])

    assert diagnosis.code == "loss-is-local"
    assert diagnosis.explanation.startswith("The loss and the accuracy are right")


def test_sums_kept_from_an_earlier_call_are_reported_with_the_ranks():
    again = [RESULT, {**RESULT, "samples": 12}]

    assert kept_from_before(again, RESULT, GUIDE).ranks == (1,)
    assert kept_from_before([RESULT, RESULT], RESULT, GUIDE) is None


@pytest.mark.parametrize(("name", "is_told"), [("accuracy", True), ("loss", False)])
def test_a_wrong_accuracy_is_reported_if_the_rest_is_right(name, is_told):
    values = ({**RESULT, name: 0.25},)
    seen = Observation(1, values, events=(), output=("",), seconds=0.0)

    assert (predicts_otherwise(GUIDE)(seen, [RESULT]) is not None) == is_told


def test_targets_that_the_least_likely_class_matches_as_often_are_rejected():
    inputs = torch.randn(6, 4, dtype=torch.float64)
    outputs = Spy()(inputs)
    targets = torch.cat([outputs.argmax(1)[:3], outputs.argmin(1)[3:]])

    assert not tells_predictions_apart([(inputs, targets)])


def test_targets_that_are_all_the_most_likely_class_are_accepted():
    inputs = torch.eye(4, dtype=torch.float64).repeat(3, 1)

    assert tells_predictions_apart([(inputs, Spy()(inputs).argmax(1))])


@pytest.mark.parametrize(
    ("counts", "code"), [([2, 2], None), ([2, 3], "samples-dropped"), ([0, 0], None)]
)
def test_an_evaluation_runs_on_every_sample(counts, code):
    found = evaluated_too_few(seen_of(rightly), counts, GUIDE)

    assert (found and found.code) == code


def test_an_evaluation_that_does_not_run_the_model_is_reported():
    assert evaluated_too_few(seen_of(not_at_all), [0, 0], GUIDE).code == (
        "differs-from-single-process"
    )


def test_more_keys_of_an_evaluation_are_right():
    seen = seen_of(lambda *_: {**RESULT, "name": "val", "per_class": [1, 2]})

    assert [value["result"] for value in seen] == [RESULT] * 2
    assert other_keys([RESULT] * 2, GUIDE) is None


@pytest.mark.parametrize(
    ("results", "code", "ranks"),
    [
        ([RESULT, {}], "only-one-rank-has-it", (1,)),
        ([{}, {}], "wrong-signature", (0, 1)),
        ([{"acc": 0.0, "loss": 0.0}] * 2, "wrong-signature", (0, 1)),
    ],
)
def test_a_result_without_the_keys_is_reported(results, code, ranks):
    found = other_keys(results, GUIDE)

    assert (found.code, found.ranks) == (code, ranks)


@pytest.mark.parametrize(
    ("accuracy", "what"), [(50.0, "a percentage"), (2.0, "the number of correct samples")]
)
def test_an_accuracy_of_another_scale_is_named(accuracy, what):
    results = ({**RESULT, "accuracy": accuracy},) * 2

    found = predicts_otherwise(GUIDE)(Observation(2, results, (), (), 0.0), [RESULT] * 2)

    assert f"evaluate returns {what} as the accuracy" in found.explanation
    assert "dimension" not in found.explanation
