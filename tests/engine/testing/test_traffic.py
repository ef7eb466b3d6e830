"""The bytes that ranks send, and the rule on ranks that send too many."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from gradsync import run_ranks
from gradsync.ranks.deadlocks.calls import EXCHANGES, bytes_of
from gradsync.ranks.inside.watch.process_group import COLLECTIVES
from gradsync.records import Collective, Event, Observation
from gradsync.testing.traffic import (
    assert_collectives,
    assert_no,
    bytes_by_group,
    bytes_by_op,
    bytes_by_rank,
    too_many_bytes,
    traffic,
)


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


SEEN = observed(
    [call("new_group"), call("all_gather", where="train.py:3"), call("all_reduce", dtype="int64")],
    [call("all_reduce"), call("broadcast", root=0)],
)


def test_the_expected_collectives_pass_and_groups_do_not_count():
    assert_collectives(SEEN, 0, ["all_gather", "all_reduce"])
    assert_no(SEEN, "barrier")
    assert_no(SEEN, "all_gather", ranks=[1])


def test_the_difference_to_the_expected_collectives_is_shown_with_lines():
    with pytest.raises(AssertionError) as caught:
        assert_collectives(SEEN, 0, ["reduce_scatter", "all_reduce", "barrier"])

    assert str(caught.value).splitlines() == [
        "Rank 0 did not call the expected collectives (- is missing, + is not expected):",
        "  - reduce_scatter",
        "  + all_gather (4 x float32), at train.py:3",
        "    all_reduce (4 x int64)",
        "  - barrier",
    ]


def test_a_collective_that_no_rank_should_call_is_shown_with_its_ranks_and_lines():
    with pytest.raises(AssertionError, match=r"rank 0: all_gather \(4 x float32\), at train\.py:3"):
        assert_no(SEEN, "all_gather")


@pytest.mark.parametrize("op", ["all_gather_object", "allreduce"])
def test_a_name_that_is_never_recorded_is_refused(op):
    with pytest.raises(ValueError, match=f"op must be one of all_gather, .*, got '{op}'"):
        assert_no(SEEN, op)


def test_all_names_that_ranks_record_are_known():
    assert {op for op, _ in COLLECTIVES.values()} == EXCHANGES


def test_bytes_are_counted_by_operation_and_by_group():
    assert bytes_by_op(SEEN, 0) == {"all_gather": 16, "all_reduce": 32}
    assert bytes_by_op(SEEN, 1) == {"all_reduce": 16, "broadcast": 0}
    assert bytes_by_group(SEEN, 0) == {(0, 1): 48}


def test_torch_counts_the_same_collectives_of_a_sharded_module():
    def train(world_size):
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.debug import CommDebugMode

        mesh = init_device_mesh("cpu", (world_size,))
        model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), mesh=mesh)
        with CommDebugMode() as counted:
            model(torch.ones(2, 4)).sum().backward()
            distribute_tensor(torch.ones(4), mesh, [Shard(0)]).full_tensor()
        return {
            str(op).rpartition(".")[2].strip("_").removesuffix("_base"): count
            for op, count in counted.get_comm_counts().items()
        }

    seen = run_ranks(train, 2)

    ours = Counter(call.op.removesuffix("_coalesced") for call in traffic(seen, 0))
    named = {"allgather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    theirs: Counter[str] = Counter()
    for op, count in seen[0].items():
        theirs[named.get(op, op)] += count
    assert ours == theirs
