"""Deadlocks are proved from the calls that ranks enter, without waiting for a time limit."""

import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn


def gradients():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model(torch.ones(1, 2)).sum().backward()
    return model


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_a_rank_that_skips_an_all_reduce_is_named(failure_of, here, launcher):
    def skip(rank):
        model = gradients()
        for name, parameter in model.named_parameters():
            if rank != 1 or name != "1.bias":
                dist.all_reduce(parameter.grad)  # here

    failure = failure_of(skip, 3 if launcher == "fork" else 2, launcher=launcher)

    assert (failure.status, failure.diagnosis.code) == ("deadlock", "deadlock-rank-missing")
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(skip)
    assert "Rank 1 returned without calling all_reduce #4 (1.bias.grad, 1 x float32)." in str(
        failure
    )


def test_the_guide_shows_the_text_of_a_deadlock(failure_of):
    guide = Path(__file__).parents[4] / "phase1" / "GUIDELINES.md"

    def skip(rank):
        layers = {"conv1": nn.Linear(2, 2), "conv2": nn.Linear(2, 2), "fc2": nn.Linear(2, 10)}
        model = nn.ModuleDict({"conv0": nn.Linear(2, 2, bias=False), **layers})
        for name, parameter in model.named_parameters():
            parameter.grad = torch.zeros_like(parameter)
            if rank != 1 or name != "fc2.bias":
                dist.all_reduce(parameter.grad)

    text = failure_of(skip, 4).diagnosis.explanation

    shown = re.sub(r"test_deadlocks\.py:\d+", "template_trainer.py:91", text)
    assert shown in " ".join(guide.read_text().split())


def test_the_message_names_the_waiting_ranks(failure_of):
    def skip(rank):
        if rank != 2:
            dist.barrier()

    failure = failure_of(skip, 4)

    assert failure.waiting == (0, 1, 3)
    assert re.search(
        r"Rank 2 returned without calling barrier #1\. "
        r"Ranks 0, 1 and 3 are waiting in it, at test_deadlocks\.py:\d+\. "
        r"Every rank must make this call\. Look for a branch or an early return before it\.$",
        failure.diagnosis.explanation,
    )


def test_different_collectives_at_the_same_point_are_reported(failure_of, here):
    def disagree(rank):
        if rank == 1:
            dist.barrier()  # here
        dist.all_reduce(torch.ones(2))

    failure = failure_of(disagree, 4)

    assert failure.diagnosis.code == "deadlock-order-differs"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(disagree)


def test_the_deviating_rank_is_named_whichever_arrives_first(failure_of):
    def disagree(rank):
        time.sleep(0.1 * (3 - rank))
        if rank == 2:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(2))

    failure = failure_of(disagree, 4)

    assert failure.diagnosis.ranks == (2,)


def test_parameters_in_a_different_order_are_reported_as_such(failure_of):
    def reverse(rank):
        model = gradients()
        for parameter in list(model.parameters())[:: -1 if rank == 1 else 1]:
            dist.all_reduce(parameter.grad)

    failure = failure_of(reverse, 3)

    assert failure.diagnosis.code == "deadlock-order-differs"


@pytest.mark.parametrize(
    ("collective", "code"),
    [
        (lambda rank: dist.all_reduce(torch.ones(2 + rank)), "shape-mismatch"),
        (lambda rank: dist.broadcast(torch.ones(2 + rank), 0), "shape-mismatch"),
        (
            lambda rank: dist.all_reduce(torch.ones(2, dtype=[torch.int64, torch.float32][rank])),
            "shape-mismatch",
        ),
        (
            lambda rank: dist.all_reduce(
                torch.ones(2), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank]
            ),
            "shape-mismatch",
        ),
        (lambda rank: dist.broadcast(torch.ones(2), rank), "wrong-source"),
        (lambda rank: dist.reduce(torch.ones(2), rank), "wrong-source"),
    ],
    ids=["sizes", "broadcast sizes", "dtypes", "reductions", "sources", "targets"],
)
def test_mismatched_arguments_are_reported(failure_of, collective, code):
    failure = failure_of(collective, 2)

    assert (failure.status, failure.diagnosis.code) == ("deadlock", code)


def test_both_shapes_are_shown(failure_of):
    failure = failure_of(lambda rank: dist.all_reduce(torch.ones(2, 2 + rank)), 2)

    assert "shape [2, 2]" in failure.diagnosis.explanation
    assert "shape [2, 3]" in failure.diagnosis.explanation


def swap_lists(rank):
    sizes = [2, 2, 2 + (rank == 1)]
    dist.all_to_all([torch.empty(2) for _ in sizes], [torch.ones(size) for size in sizes])


def swap_rows(rank):
    rows = [1, 1, 2] if rank == 1 else [1, 1, 1]
    dist.all_to_all_single(torch.empty(3, 2), torch.ones(sum(rows), 2), [1, 1, 1], rows)


@pytest.mark.parametrize(
    ("swap", "sizes"), [(swap_lists, (3, 2)), (swap_rows, (4, 2))], ids=["lists", "rows"]
)
def test_sizes_that_differ_in_an_all_to_all_are_reported(failure_of, swap, sizes):
    failure = failure_of(swap, 3)

    sent, expected = (f"{size} x float32" for size in sizes)
    text = failure.diagnosis.explanation
    assert (failure.diagnosis.code, failure.diagnosis.ranks) == ("shape-mismatch", (1, 2))
    assert f"Rank 1 sends {sent} to rank 2, at test_deadlocks.py" in text
    assert f"Rank 2 expects {expected} from rank 1, at test_deadlocks.py" in text


def test_a_rank_whose_message_to_itself_has_the_wrong_size_is_named(failure_of):
    def swap(rank):
        rows = [1, 1 + (rank == 1)]
        dist.all_to_all_single(torch.empty(2), torch.ones(sum(rows)), [1, 1], rows)

    failure = failure_of(swap, 2)

    assert failure.diagnosis.ranks == (1,)
    assert "Rank 1 sends 2 x float32 to itself" in failure.diagnosis.explanation


class Swap(torch.autograd.Function):
    """An all-to-all in forward and in backward."""

    @staticmethod
    def forward(_, rows):
        return swapped(rows)

    @staticmethod
    def backward(_, grad):
        return swapped(grad)


def swapped(rows):
    arrived = torch.empty_like(rows)
    dist.all_to_all_single(arrived, rows.contiguous())
    return arrived


def test_a_rank_whose_backward_makes_no_all_to_all_is_named(failure_of):
    def leave_out(rank):
        rows = torch.ones(4, requires_grad=True)
        arrived = Swap.apply(rows)
        (rows if rank == 1 else arrived).sum().backward()
        swapped(torch.ones(2))

    failure = failure_of(leave_out, 2)

    text = failure.diagnosis.explanation
    assert "from different places, with sizes that do not match" in text
    assert "Rank 1 is not in the backward pass." in text


@pytest.mark.parametrize("absent", range(4))
@pytest.mark.parametrize(
    "collective",
    [
        lambda: dist.broadcast(torch.ones(2), 0),
        lambda: dist.reduce(torch.ones(2), 0),
        lambda: dist.all_gather([torch.ones(2)] * 4, torch.ones(2)),
        lambda: dist.all_gather_object([None] * 4, "x"),
        lambda: dist.broadcast_object_list(["x"], 0),
    ],
    ids=["broadcast", "reduce", "all_gather", "all_gather_object", "broadcast_object_list"],
)
def test_a_rank_that_omits_a_collective_is_named(failure_of, collective, absent):
    def skip(rank):
        if rank != absent:
            collective()
        dist.barrier()

    failure = failure_of(skip, 4)

    assert failure.diagnosis.code == "deadlock-order-differs"
    assert failure.diagnosis.ranks == (absent,)


def test_a_rank_that_skips_a_subgroups_collective_is_named(failure_of):
    def skip(rank):
        pair = dist.new_group([0, 2])
        if rank == 2:
            dist.all_reduce(torch.ones(2), group=pair)

    failure = failure_of(skip, 4)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (0,)


def test_a_rank_that_does_not_create_a_group_is_named(failure_of):
    def skip(rank):
        if rank != 1:
            dist.new_group([0, 2])

    failure = failure_of(skip, 3)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)
    assert "new_group" in failure.diagnosis.explanation


def test_a_rank_that_never_starts_the_default_group_is_named(failure_of, here, tmp_path):
    def forget(rank, path):
        if rank != 1:
            dist.init_process_group(  # here
                "gloo", init_method=f"file://{path}", rank=rank, world_size=3
            )

    failure = failure_of(forget, 3, process_group=False, path=str(tmp_path / "store"))

    assert failure.diagnosis.code == "group-not-initialised"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(forget)


def test_ranks_that_failed_because_of_another_are_not_named(failure_of):
    def fail(rank):
        dist.all_reduce(torch.ones(2))
        if rank == 1:
            dist.destroy_process_group()
            raise ValueError("the root of it")
        dist.all_reduce(torch.ones(2))

    failure = failure_of(fail, 3)

    assert failure.diagnosis.ranks == (1,)
    assert failure.detail == "the root of it"
