"""Proofs of deadlocks from events, without processes."""

import pytest
from deadlock_story import Story

from gradsync.ranks.deadlocks.detector import LOOSE_OPS


def test_a_computing_rank_may_still_arrive():
    story = Story(3)
    story.waits_in(0)
    story.waits_in(1)

    assert not story.likely


def test_a_returned_rank_never_arrives():
    story = Story(3)
    story.waits_in(0)
    story.waits_in(1)
    story.returns(2)

    assert story.proved == {0, 1}


def test_a_collective_that_all_have_entered_completes():
    story = Story(2)
    story.waits_in(0)
    story.waits_in(1)

    assert not story.likely


def test_a_rank_that_waits_for_one_that_can_continue_is_not_stuck():
    story = Story(3)
    story.waits_in(0, group="a", members=(0, 1))
    story.waits_in(1, group="b", members=(1, 2))
    story.waits_in(2, group="b", members=(1, 2))

    assert not story.likely


def test_a_circle_is_stuck():
    story = Story(3)
    for rank in range(3):
        pair = (rank, (rank + 1) % 3)
        story.waits_in(rank, group=str(pair), members=pair)

    assert story.proved == {0, 1, 2}


def test_entering_without_waiting_does_not_block():
    story = Story(2)
    story.enters(0)
    story.returns(1)

    assert not story.likely


def test_an_entered_collective_counts_after_its_rank_returned():
    story = Story(2)
    story.enters(0)
    story.returns(0)
    story.waits_in(1)

    assert not story.likely


def test_a_second_thread_may_still_act():
    story = Story(2)
    story.enters(0)
    story.waits(0, others=1)
    story.returns(1)

    assert not story.likely


def test_a_rank_is_stuck_when_all_its_threads_are():
    story = Story(2)
    story.enters(0)
    story.enters(0, group="other")
    story.waits(0, call=0, thread=1, others=1)
    story.waits(0, call=1, thread=2, others=1)
    story.returns(1)

    assert story.proved == {0}


def test_a_finished_wait_no_longer_blocks():
    story = Story(2)
    story.waits_in(0)
    story.leaves(0)
    story.returns(1)

    assert not story.likely


@pytest.mark.parametrize("op", sorted(LOOSE_OPS))
def test_a_loose_collective_without_a_leaf_is_likely_but_not_proved(op):
    story = Story(3)
    leaf = 1 if op in ("reduce", "gather") else 0
    story.waits_in(leaf, op, root=0)
    story.returns(2)

    assert (story.proved, story.likely) == (set(), {leaf})


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_no_rank_completes_without_the_source(op):
    story = Story(3)
    story.waits_in(1, op, root=0)
    story.returns(0)

    assert story.proved == {1}


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_the_target_needs_all_ranks(op):
    story = Story(3)
    story.waits_in(0, op, root=0)
    story.returns(2)

    assert story.proved == {0}


def test_waiting_for_a_rank_in_a_loose_collective_proves_nothing():
    story = Story(3)
    story.waits_in(0, group="pair", members=(0, 1))
    story.waits_in(1, "reduce", root=2)
    story.returns(2)

    assert (story.proved, story.likely) == (set(), {0, 1})


def test_empty_collectives_do_not_wait():
    story = Story(2)
    story.waits_in(0, shapes=((0, 3),))
    story.returns(1)

    assert not story.likely


def test_polling_counts_at_the_time_limit():
    story = Story(2)
    story.enters(0)
    story.returns(1)

    assert set(story.detector.at_last()) == {0}


def test_polling_for_a_rank_that_may_arrive_does_not_count():
    story = Story(2)
    story.enters(0)

    assert not story.detector.at_last()


def test_idle_threads_do_not_count_at_the_time_limit():
    story = Story(2)
    story.enters(0)
    story.waits(0, others=3)
    story.returns(1)

    assert set(story.detector.at_last()) == {0}


def test_in_turns_a_recv_from_any_rank_receives_the_message_that_was_sent_first():
    story = Story(3, in_turns=True)
    story.waits_in(2, "send", peer=0)
    story.waits_in(1, "send", peer=0)
    assert set(story.detector.likely(without={0})) == {1, 2}

    story.waits_in(0, "recv", peer=None)

    assert [story.detector.started(rank) for rank in range(3)] == [[0], [], [0]]


def test_in_turns_a_message_goes_to_the_recv_from_any_rank_that_waits():
    story = Story(3, in_turns=True)
    story.waits_in(0, "recv", peer=None)
    assert set(story.detector.likely(without={1, 2})) == {0}

    story.waits_in(1, "send", peer=0)

    assert set(story.detector.likely(without={2})) == set()
    story.waits_in(2, "send", peer=0)
    assert [story.detector.started(rank) for rank in range(3)] == [[0], [0], []]


def test_in_turns_a_recv_whose_end_is_reported_first_is_not_forgotten():
    story = Story(3, in_turns=True)
    story.waits_in(0, "recv", peer=None)
    story.leaves(0)
    story.enters(1, "send", peer=0)

    story.waits_in(0, "recv", peer=None)

    assert story.detector.started(1) == [0]
    assert set(story.detector.likely(without={1, 2})) == {0}


def test_a_rank_is_ahead_if_it_leaves_a_broadcast_before_others_enter_it():
    story = Story(2)
    story.waits_in(0, "broadcast", root=0)
    story.leaves(0)
    assert story.detector.ahead() == {0}

    story.waits_in(1, "broadcast", root=0)

    assert story.detector.ahead() == set()
