"""Mistakes in setting up a process group, recognised by how the run ends."""

from dataclasses import replace

import pytest

from gradsync.records import Collective, Diagnosis, Event, Failure, Observation
from support.rules.launching import (
    address_taken,
    another_rank_passed,
    left_waiting,
    never_connected,
    none_started,
    string_for_a_number,
    variable_not_set,
    without_a_group,
    wrong_address,
)

LINE = "template_trainer.py:114"


def seen(status, calls, answered=(), detail=None):
    """Return a failed run; `calls` are the calls that ranks entered and did not leave, in order."""
    events = tuple(
        Event(rank, "enter", 0, 0.0, 0, collective=Collective(op, "0", (0, 1), where=where))
        for rank, op, where in calls
    )
    failure = Failure(status, Diagnosis("any", (0,), "", LINE), "DistStoreError", detail)
    return Observation(2, (None, None), events, ("", ""), 1.0, failure, answered)


MEETING = [(rank, "init_process_group", LINE) for rank in (0, 1)]


def test_ranks_with_another_address_are_named():
    found = wrong_address([[], ["10.0.0.2"], ["127.0.0.1"]], "10.0.0.2")

    assert (found.code, found.ranks) == ("wrong-master", (2,))
    assert "rank 2 connected to 127.0.0.1" in found.explanation


def test_connections_to_the_master_or_to_no_address_are_right():
    assert wrong_address([[], ["10.0.0.2"], []], "10.0.0.2") is None


def test_ranks_that_never_connect_are_reported():
    for calls in (MEETING, []):
        found = never_connected(seen("timeout", calls), None)
        assert (found.code, found.ranks, found.where) == ("wrong-master", (0, 1), LINE)
        assert "can't find each other" in found.explanation

    found = never_connected(seen("error", MEETING, detail="1/2 clients joined."), None)
    assert found.code == "wrong-master"


def test_ranks_past_the_setup_did_connect():
    further = [*MEETING, (1, "barrier", LINE)]

    assert never_connected(seen("timeout", further), None) is None
    assert never_connected(seen("timeout", MEETING, answered=(1,)), None) is None
    assert never_connected(seen("error", MEETING, detail="no such thing"), None) is None


def test_a_waiting_rank_is_reported_with_the_ranks_that_returned():
    beside = [(0, "barrier", LINE), (1, "all_reduce", None)]

    for run in (seen("deadlock", beside), seen("timeout", MEETING, answered=(1,))):
        found = left_waiting(run, None)
        assert (found.code, found.ranks) == ("deadlock-rank-missing", (1,))
        assert f"Rank 0 waits in setup_distributed, at {LINE}" in found.explanation


def test_ranks_that_are_all_inside_or_all_outside_are_not_reported():
    assert left_waiting(seen("timeout", MEETING), None) is None
    assert left_waiting(seen("deadlock", [(0, "barrier", None), (1, "send", None)]), None) is None
    assert left_waiting(seen("error", MEETING, answered=(1,)), None) is None


def test_a_number_that_is_still_a_string_is_reported():
    found = string_for_a_number("RANK=1", [1, 2, 0, "10.0.0.7", "29500"])

    assert found.code == "wrong-signature"
    assert "the master_port '29500' as a str" in found.explanation
    assert string_for_a_number("RANK=1", [1, 2, 0, "10.0.0.7", 29500]) is None
    assert string_for_a_number("RANK=1", None) is None


def test_a_setup_without_a_group_is_distinguished_from_an_early_collective():
    nothing = "Default process group has not been initialized"
    early = seen("error", [], detail=nothing)
    known = early.failure.diagnosis
    after = replace(early, failure=replace(early.failure, diagnosis=replace(known, where=None)))

    assert none_started(after, None).code == "group-not-initialised"
    assert "returned on rank 0 of 2 without starting" in none_started(after, None).explanation
    assert none_started(early, None) is None


def ended(failure):
    return Observation(1, (None,), (), ("",), 0.1, failure)


def raised(detail):
    known = Diagnosis("exception", (0,), detail, "template_trainer.py:115")
    return ended(Failure("error", known, "ValueError", detail))


@pytest.mark.parametrize(
    ("rule", "detail", "code"),
    [
        (variable_not_set, "environment variable RANK expected, but not set", "launcher-not-read"),
        (address_taken, "port: 29500, errno: 98, Address already in use", "wrong-master"),
        (
            without_a_group("needs none", "Checkpoints"),
            "Default process group has not been initialized, please make sure ...",
            "group-not-initialised",
        ),
    ],
)
def test_an_exception_of_the_process_group_is_explained(rule, detail, code):
    diagnosis = rule(raised(detail), None)

    assert (diagnosis.code, diagnosis.ranks) == (code, (0,))
    assert "template_trainer.py:115" in diagnosis.explanation
    assert rule(raised("something else"), None) is None
    assert rule(ended(None), None) is None


@pytest.mark.parametrize(
    ("ranks", "beginning"), [((0,), "Rank 0 raised"), ((0, 1), "Ranks 0 and 1 raised")]
)
def test_a_missing_group_names_the_ranks_and_not_the_setup(ranks, beginning):
    run = raised("Default process group has not been initialized")
    known = replace(run.failure.diagnosis, ranks=ranks)
    run = replace(run, failure=replace(run.failure, diagnosis=known))

    rule = without_a_group("load_checkpoint must work without a process group", "Checkpoints")
    found = rule(run, None)

    assert found.explanation == (
        f"{beginning} ValueError at template_trainer.py:115. load_checkpoint must work without a "
        "process group."
    )


def test_a_rank_that_passes_another_rank_is_named():
    rule = another_rank_passed(lambda: [0, 0])
    right = another_rank_passed(lambda: [0, None])
    taken = raised("Address already in use")

    found = rule(taken, None)

    assert (found.code, found.ranks) == ("launcher-not-read", (1,))
    assert "with rank=0 on rank 1" in found.explanation
    assert right(taken, None) is None
    assert rule(raised("something else"), None) is None
