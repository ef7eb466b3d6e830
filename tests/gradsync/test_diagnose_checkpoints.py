"""Mistakes with checkpoints, known by what was done to files and by what a load leaves."""

import pytest

from gradsync.diagnose.checkpoints import (
    brought_from_elsewhere,
    former_file_away,
    former_file_seen,
    former_file_stays,
    goes_on_otherwise,
    more_than_values,
    no_whole_number,
    not_there,
    read_by_nobody,
    set_free,
    stumbles_over_the_rest,
    too_small,
    written_beside,
)
from gradsync.records import Diagnosis, Failure, Observation

GUIDE = "Checkpoints"


def told(**values):
    """Return two ranks that tell the same, of a load with nothing wrong but `values`."""
    fine = {"loaded": [1.0], "after": [2.0], "trainable": [True, False], "kind": None}
    return Observation(2, ({**fine, **values},) * 2, (), ("", ""), 0.1)


def test_a_right_checkpoint_gets_no_diagnosis():
    seen = told()
    rules = [set_free([True, False], GUIDE), no_whole_number(GUIDE), goes_on_otherwise([2], GUIDE)]

    assert [rule(seen, None) for rule in rules] == [None] * 3
    assert written_beside([["there.pt"], [], []], GUIDE) is None
    assert former_file_away([], GUIDE) is None
    assert brought_from_elsewhere(False, GUIDE) is None
    assert former_file_stays(True, GUIDE) is None
    assert stumbles_over_the_rest(None, renewed=True, guide=GUIDE) is None


def test_files_of_other_ranks_are_named():
    found = written_beside([["there.pt"], [], ["mark-2"]], GUIDE)

    assert (found.code, found.ranks) == ("every-rank-writes", (2,))
    assert "Rank 2 created files beside the checkpoint: mark-2" in found.explanation


def test_what_happened_to_the_former_file_is_reported():
    found = former_file_away(["renamed", "emptied"], GUIDE)

    assert found.code == "not-atomic"
    assert "former checkpoint was renamed" in found.explanation


def test_a_file_moved_from_another_folder_is_reported():
    found = brought_from_elsewhere(True, GUIDE)

    assert (found.code, found.ranks) == ("not-atomic", (0,))
    assert "wrote the new file in another folder" in found.explanation


def test_a_file_that_no_later_save_replaces_is_reported():
    found = former_file_stays(False, GUIDE)

    assert (found.code, found.ranks) == ("state-lost", (0,))
    assert "left the first file as it was" in found.explanation


@pytest.mark.parametrize(
    ("again", "renewed", "said"),
    [("OSError: no", True, "fails with OSError: no"), (None, False, "leaves the old file")],
)
def test_a_save_that_fails_after_a_crash_is_reported(again, renewed, said):
    found = stumbles_over_the_rest(again, renewed, GUIDE)

    assert found.code == "not-atomic"
    assert said in found.explanation


def test_changed_trainable_parameters_are_reported():
    found = set_free([True, False], GUIDE)(told(trainable=[True, True]), None)

    assert (found.code, found.ranks) == ("frozen-touched", (0, 1))


def test_the_type_of_a_wrong_epoch_is_named():
    found = no_whole_number(GUIDE)(told(kind="Tensor"), None)

    assert found.code == "wrong-signature"
    assert "as a Tensor" in found.explanation


@pytest.mark.parametrize(("after", "code"), [([1.0], "tensors-replaced"), ([1.5], "state-lost")])
def test_a_step_after_loading_distinguishes_new_parameters_from_lost_state(after, code):
    found = goes_on_otherwise([2.0], GUIDE)(told(after=after), None)

    assert found.code == code


def test_a_file_with_more_than_values_is_reported_for_saving_and_loading():
    refused = "torch.nn.modules.container.Sequential"
    said = f"Weights only load failed. Unsupported global: GLOBAL {refused} was not allowed"

    def found(detail):
        failure = Failure("error", Diagnosis("exception", (1,), "", None), "Any", detail)
        return more_than_values(GUIDE)(
            Observation(2, (None,) * 2, (), ("", ""), 0.1, failure), None
        )

    for diagnosis in (found(said), read_by_nobody(refused, GUIDE)):
        assert diagnosis.code == "unsafe-load"
        assert f"an object of {refused}" in diagnosis.explanation
    newer = found("Weights only load failed. WeightsUnpickler error: Unsupported operand 149")
    assert newer.code == "unsafe-load"
    assert "`pickle_protocol`" in newer.explanation
    assert found("Weights only load failed. Invalid load key") is None
    assert found(None) is None
    assert read_by_nobody(None, GUIDE) is None


def test_ranks_that_still_find_the_former_file_did_not_wait():
    found = former_file_seen([[b"a", b"b"], [b"a", b"a"], [b"a", b"b"]], GUIDE)

    assert (found.code, found.ranks) == ("others-do-not-wait", (1,))
    for contents in ([[b"a", b"b"]] * 2, [[b"a", b"a"]] * 2, [[b"", b""]] * 2):
        assert former_file_seen(contents, GUIDE) is None


def test_a_missing_file_on_rank_0_is_distinguished_from_not_waiting():
    assert not_there([True, True], GUIDE) is None
    late, nowhere = not_there([True, False, False], GUIDE), not_there([False, False], GUIDE)

    assert (late.code, late.ranks) == ("others-do-not-wait", (1, 2))
    assert (nowhere.code, nowhere.ranks) == ("state-lost", (0,))
    assert "under exactly this name" in nowhere.explanation


def test_a_file_too_small_for_the_model_is_reported():
    assert too_small(256, 256, GUIDE) is None
    assert too_small(1, 256, GUIDE).code == "state-lost"
