"""Mistakes with checkpoints, recognised by changes of files and by the state after a load."""

import pytest

from gradsync.records import Diagnosis, Failure, Observation
from support.rules.checkpoints import (
    epoch_not_an_int,
    file_missing,
    former_file_harmed,
    former_file_not_replaced,
    former_file_seen,
    next_save_fails,
    other_ranks_write,
    step_after_load_differs,
    too_small,
    trainable_changed,
    unsafe_content,
    unsafe_file_refused,
    written_in_another_folder,
)

GUIDE = "Checkpoints"


def observed(**values):
    """Return the same values of two ranks after a load that is right apart from `values`."""
    fine = {"loaded": [1.0], "after": [2.0], "trainable": [True, False], "kind": None}
    return Observation(2, ({**fine, **values},) * 2, (), ("", ""), 0.1)


def test_a_right_checkpoint_gets_no_diagnosis():
    seen = observed()
    rules = [
        trainable_changed([True, False], GUIDE),
        epoch_not_an_int(GUIDE),
        step_after_load_differs([2], GUIDE),
    ]

    assert [rule(seen, None) for rule in rules] == [None] * 3
    assert other_ranks_write([["there.pt"], [], []], GUIDE) is None
    assert former_file_harmed([], GUIDE) is None
    assert written_in_another_folder(False, GUIDE) is None
    assert former_file_not_replaced(True, GUIDE) is None
    assert next_save_fails(None, renewed=True, guide=GUIDE) is None


def test_files_of_other_ranks_are_named():
    found = other_ranks_write([["there.pt"], [], ["mark-2"]], GUIDE)

    assert (found.code, found.ranks) == ("every-rank-writes", (2,))
    assert "Rank 2 created files beside the checkpoint: mark-2" in found.explanation


def test_damage_to_the_previous_file_is_reported():
    found = former_file_harmed(["renamed", "emptied"], GUIDE)

    assert found.code == "not-atomic"
    assert "previous checkpoint was renamed" in found.explanation


def test_a_file_moved_from_another_folder_is_reported():
    found = written_in_another_folder(True, GUIDE)

    assert (found.code, found.ranks) == ("not-atomic", (0,))
    assert "wrote the new file in another folder" in found.explanation


def test_a_file_that_no_later_save_replaces_is_reported():
    found = former_file_not_replaced(False, GUIDE)

    assert (found.code, found.ranks) == ("state-lost", (0,))
    assert "left the first file as it was" in found.explanation


@pytest.mark.parametrize(
    ("again", "renewed", "said"),
    [("OSError: no", True, "fails with OSError: no"), (None, False, "leaves the old file")],
)
def test_a_save_that_fails_after_a_crash_is_reported(again, renewed, said):
    found = next_save_fails(again, renewed, GUIDE)

    assert found.code == "not-atomic"
    assert said in found.explanation


def test_changed_trainable_parameters_are_reported():
    found = trainable_changed([True, False], GUIDE)(observed(trainable=[True, True]), None)

    assert (found.code, found.ranks) == ("frozen-touched", (0, 1))


def test_the_type_of_a_wrong_epoch_is_named():
    found = epoch_not_an_int(GUIDE)(observed(kind="Tensor"), None)

    assert found.code == "wrong-signature"
    assert "as a Tensor" in found.explanation


@pytest.mark.parametrize(("after", "code"), [([1.0], "tensors-replaced"), ([1.5], "state-lost")])
def test_a_step_after_loading_distinguishes_new_parameters_from_lost_state(after, code):
    found = step_after_load_differs([2.0], GUIDE)(observed(after=after), None)

    assert found.code == code


def test_a_file_with_more_than_values_is_reported_for_saving_and_loading():
    refused = "torch.nn.modules.container.Sequential"
    said = f"Weights only load failed. Unsupported global: GLOBAL {refused} was not allowed"

    def found(detail):
        failure = Failure("error", Diagnosis("exception", (1,), "", None), "Any", detail)
        return unsafe_file_refused(GUIDE)(
            Observation(2, (None,) * 2, (), ("", ""), 0.1, failure), None
        )

    for diagnosis in (found(said), unsafe_content(refused, GUIDE)):
        assert diagnosis.code == "unsafe-load"
        assert f"an object of {refused}" in diagnosis.explanation
    newer = found("Weights only load failed. WeightsUnpickler error: Unsupported operand 149")
    assert newer.code == "unsafe-load"
    assert "`pickle_protocol`" in newer.explanation
    assert found("Weights only load failed. Invalid load key") is None
    assert found(None) is None
    assert unsafe_content(None, GUIDE) is None


def test_ranks_that_still_find_the_previous_file_did_not_wait():
    found = former_file_seen([[b"a", b"b"], [b"a", b"a"], [b"a", b"b"]], GUIDE)

    assert (found.code, found.ranks) == ("others-do-not-wait", (1,))
    for contents in ([[b"a", b"b"]] * 2, [[b"a", b"a"]] * 2, [[b"", b""]] * 2):
        assert former_file_seen(contents, GUIDE) is None


def test_a_missing_file_on_rank_0_is_distinguished_from_not_waiting():
    assert file_missing([True, True], GUIDE) is None
    late, nowhere = file_missing([True, False, False], GUIDE), file_missing([False, False], GUIDE)

    assert (late.code, late.ranks) == ("others-do-not-wait", (1, 2))
    assert (nowhere.code, nowhere.ranks) == ("state-lost", (0,))
    assert "under exactly this name" in nowhere.explanation


def test_a_file_too_small_for_the_model_is_reported():
    assert too_small(230, 256, GUIDE) is None  # compressed
    assert too_small(1, 256, GUIDE).code == "state-lost"
