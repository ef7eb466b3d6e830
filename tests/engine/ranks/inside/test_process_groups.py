"""Which calls of ranks match, which may start, and which ranks a mismatch names."""

import pytest
from deadlock_story import Story


def test_a_send_matches_its_recv():
    story = Story(2)
    story.waits_in(0, "send", peer=1)
    story.waits_in(1, "recv", peer=0)

    assert not story.likely


def test_two_sends_do_not_match():
    story = Story(2)
    story.waits_in(0, "send", peer=1)
    story.waits_in(1, "send", peer=0)

    assert story.proved == {0, 1}


def test_messages_match_in_order():
    story = Story(2)
    story.enters(0, "send", peer=1)
    story.enters(0, "send", peer=1)
    story.waits_in(1, "recv", peer=0)
    story.leaves(1)
    story.waits_in(1, "recv", peer=0)
    story.leaves(1)
    story.returns(0)
    story.waits_in(1, "recv", peer=0)

    assert story.proved == {1}


def test_a_recv_from_any_rank_receives_an_earlier_send():
    story = Story(3)
    story.enters(1, "send", peer=0)
    story.returns(1)
    story.returns(2)
    story.waits_in(0, "recv", peer=None)

    assert not story.likely


def test_a_recv_from_any_rank_is_stuck_when_all_others_have_returned():
    story = Story(3)
    story.waits_in(0, "recv", peer=None)
    story.returns(1)
    assert not story.likely
    story.returns(2)

    assert story.proved == {0}


def test_a_recv_from_any_rank_can_receive_any_send():
    story = Story(2)
    story.enters(0, "recv", peer=None)
    story.waits_in(1, "send", peer=0)

    assert not story.likely


@pytest.mark.parametrize(
    ("one", "other", "code"),
    [
        ({"op": "barrier"}, {"op": "all_reduce"}, "deadlock-order-differs"),
        ({"shapes": ((2,),)}, {"shapes": ((3,),)}, "shape-mismatch"),
        ({"dtype": "int64"}, {"dtype": "float32"}, "shape-mismatch"),
        ({"reduce": "SUM"}, {"reduce": "MAX"}, "shape-mismatch"),
        ({"op": "broadcast", "root": 0}, {"op": "broadcast", "root": 1}, "wrong-source"),
        (
            {"shapes": ((2,),), "label": "a"},
            {"shapes": ((3,),), "label": "b"},
            "deadlock-order-differs",
        ),
    ],
    ids=["op", "shape", "dtype", "reduction", "root", "parameter"],
)
def test_mismatched_calls_may_not_start(one, other, code):
    story = Story(2)

    assert story.enters(0, **one)
    story.waits(0)
    assert not story.enters(1, **other)

    assert story.proved == {0, 1}
    assert story.diagnosis().code == code


def test_shapes_of_the_same_size_match():
    story = Story(2)

    assert story.enters(0, shapes=((2, 3),))
    assert story.enters(1, shapes=((6,),))


def test_parts_of_different_sizes_may_be_exchanged():
    story = Story(2)

    assert story.enters(0, "all_to_all_single", shapes=((2,),))
    assert story.enters(1, "all_to_all_single", shapes=((3,),))


@pytest.mark.parametrize(
    ("sent", "received", "fits"),
    [
        (((2,), "float32"), ((2,), "float32"), True),
        (((2,), "float32"), ((3,), "float32"), True),
        (((3,), "float32"), ((2,), "float32"), False),
        (((2,), "float64"), ((2,), "float32"), False),
        (((8,), "uint8"), ((2,), "float32"), True),
    ],
)
def test_a_message_must_fit_its_receiver(sent, received, fits):
    story = Story(2)
    story.enters(0, "send", peer=1, shapes=(sent[0],), dtype=sent[1])

    assert story.enters(1, "recv", peer=0, shapes=(received[0],), dtype=received[1]) == fits


def test_each_group_has_its_own_count():
    story = Story(2)
    story.enters(0, "barrier", group="a")
    story.enters(0, "all_reduce", group="b")
    story.enters(1, "all_reduce", group="b")

    assert story.enters(1, "barrier", group="a")


def test_the_deviating_rank_is_named():
    story = Story(4)
    for rank in (3, 0, 1, 2):
        story.waits_in(rank, "barrier" if rank == 3 else "all_reduce")

    assert story.diagnosis().ranks == (3,)


def test_a_rank_that_returned_is_named_before_those_that_wait_elsewhere():
    story = Story(4)
    story.waits_in(3, "recv", peer=0)
    story.waits_in(0)
    story.waits_in(2)
    story.returns(1)

    assert (story.diagnosis().code, story.diagnosis().ranks) == ("deadlock-rank-missing", (1,))


def test_the_call_in_which_most_ranks_wait_is_named_first():
    story = Story(4)
    story.waits_in(3, "recv", peer=0)
    for rank in (0, 1, 2):
        story.waits_in(rank)

    assert (story.diagnosis().code, story.diagnosis().ranks) == ("deadlock-order-differs", (3,))
