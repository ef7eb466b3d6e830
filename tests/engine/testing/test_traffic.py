"""The bytes that ranks send, and the rule on ranks that send too many."""

import pytest

from gradsync.ranks.deadlocks.calls import bytes_of
from gradsync.records import Collective, Event, Observation
from gradsync.testing.traffic import bytes_by_rank, too_many_bytes


def call(op, shape=(4,), dtype="float32", root=None, where=None):
    return Collective(op, "world", (0, 1), shapes=(shape,), dtype=dtype, root=root, where=where)


def observed(*by_rank):
    events = [
        Event(rank, "enter", number, 0.0, 1, collective=collective)
        for rank, calls in enumerate(by_rank)
        for number, collective in enumerate(calls)
    ]
    return Observation(len(by_rank), (None,) * len(by_rank), tuple(events), (), 0.0)


@pytest.mark.parametrize(
    ("shape", "dtype", "size"), [((2, 3), "float32", 24), ((3,), "float64", 24), ((), "uint8", 1)]
)
def test_bytes_are_the_number_of_elements_times_their_size(shape, dtype, size):
    assert bytes_of(call("send", shape, dtype)) == size


def test_received_bytes_do_not_count():
    seen = observed(
        [call("broadcast", root=0), call("send")], [call("broadcast", root=0), call("recv")]
    )

    assert bytes_by_rank(seen) == [32, 0]


def test_calls_before_the_marker_do_not_count():
    seen = observed([call("all_reduce", (100,)), call("new_group", ()), call("all_reduce")])

    assert bytes_by_rank(seen) == [16]


def test_ranks_that_send_too_much_are_named_with_their_largest_call():
    large = call("all_reduce", (100,), where="mine.py:7")
    seen = observed([call("all_reduce"), large, call("send", where="mine.py:9")], [call("send")])

    diagnosis = too_many_bytes(seen, 100, "Send less.", "Pipelines")

    assert (diagnosis.code, diagnosis.ranks, diagnosis.where) == (
        "too-many-bytes",
        (0,),
        "mine.py:7",
    )
    assert diagnosis.explanation == "Ranks 0 and 1 send 432 and 16 bytes in collectives. Send less."
    assert too_many_bytes(seen, 1000, "Send less.", "Pipelines") is None
