"""Who waits for whom: events in, proofs out, no process far and wide."""

import pytest
from standoff_story import Story

from gradsync.ranks.standoff import LOOSE_OPS


def test_a_rank_that_still_computes_may_yet_come():
    story = Story(3)
    story.waits_in(0)
    story.waits_in(1)

    assert not story.likely


def test_a_rank_that_returned_never_comes():
    story = Story(3)
    story.waits_in(0)
    story.waits_in(1)
    story.returns(2)

    assert story.proved == {0, 1}


def test_a_collective_that_all_have_entered_goes_on():
    story = Story(2)
    story.waits_in(0)
    story.waits_in(1)

    assert not story.likely


def test_who_waits_for_one_that_can_go_on_is_not_stuck():
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


def test_entering_without_waiting_is_not_being_blocked():
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


def test_a_second_thread_may_yet_act():
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


def test_a_wait_that_was_left_blocks_no_more():
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
def test_nobody_leaves_without_the_source(op):
    story = Story(3)
    story.waits_in(1, op, root=0)
    story.returns(0)

    assert story.proved == {1}


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_the_target_leaves_without_nobody(op):
    story = Story(3)
    story.waits_in(0, op, root=0)
    story.returns(2)

    assert story.proved == {0}


def test_who_waits_for_a_rank_that_may_leave_a_loose_collective_is_not_proved_stuck():
    story = Story(3)
    story.waits_in(0, group="pair", members=(0, 1))
    story.waits_in(1, "reduce", root=2)
    story.returns(2)

    assert (story.proved, story.likely) == (set(), {0, 1})


def test_nothing_to_exchange_waits_for_nobody():
    story = Story(2)
    story.waits_in(0, shapes=((0, 3),))
    story.returns(1)

    assert not story.likely


def test_polling_counts_when_the_time_is_up():
    story = Story(2)
    story.enters(0)
    story.returns(1)

    assert set(story.standoff.at_last()) == {0}


def test_polling_for_one_that_may_come_does_not():
    story = Story(2)
    story.enters(0)

    assert not story.standoff.at_last()


def test_idle_threads_do_not_count_when_the_time_is_up():
    story = Story(2)
    story.enters(0)
    story.waits(0, others=3)
    story.returns(1)

    assert set(story.standoff.at_last()) == {0}
