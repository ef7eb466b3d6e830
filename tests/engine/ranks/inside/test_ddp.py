"""torch's DistributedDataParallel on ranks: the same results, and deadlocks are explained."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from gradsync import RankFailure, run_ranks
from gradsync.ranks.inside import watch


def gradients(ddp):
    return [parameter.grad.clone() for parameter in ddp.module.parameters()]


def failure_of(function, world_size=4, **inputs):
    with pytest.raises(RankFailure) as caught:
        run_ranks(function, world_size, timeout=15, **inputs)
    return caught.value.observation.failure


def test_it_may_be_compiled():
    def train():
        model = torch.compile(DistributedDataParallel(nn.Linear(3, 2)), backend="eager")
        for _ in range(2):  # the second pass rebuilds the buckets
            model(torch.ones(2, 3)).sum().backward()

    run_ranks(train, 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.00001},
        {"gradient_as_bucket_view": True},
        pytest.param({"static_graph": True}, marks=pytest.mark.slow),
        pytest.param({"find_unused_parameters": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_gradients_equal_those_of_ddp_without_reporting(options):
    def train(rank, world_size, options, watched):
        if not watched:
            watch.install().end()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        ddp = DistributedDataParallel(model, **options)
        torch.manual_seed(rank)
        for _ in range(3):
            ddp(torch.randn(5, 3)).square().sum().backward()
        if not ddp.static_graph:
            with ddp.no_sync():
                ddp(torch.randn(5, 3)).square().sum().backward()
            ddp(torch.randn(5, 3)).square().sum().backward()
        return gradients(ddp)

    watched, plain = (
        run_ranks(train, 3, options=options, watched=watched) for watched in (True, False)
    )

    for rank in range(3):
        torch.testing.assert_close(watched[rank], plain[rank], rtol=1e-6, atol=1e-6)


def test_each_bucket_is_an_all_reduce_at_the_line_of_backward():
    def train():
        ddp = DistributedDataParallel(
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), bucket_cap_mb=0.00001
        )
        for _ in range(2):  # the first pass has one bucket
            ddp(torch.ones(1, 3)).sum().backward()

    seen = run_ranks(train, 2)

    buckets = [each for each in seen.collectives(0) if each.op == "all_reduce"]
    assert len(buckets) > 2
    assert all(each.where.startswith("test_ddp.py") for each in buckets)


@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.BatchNorm1d(2)], ids=["plain", "buffers"])
def test_a_rank_with_fewer_batches_is_named(norm):
    def train(rank, norm):
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), norm()))
        for _ in range(1 if rank == 3 else 2):
            ddp(torch.ones(4, 3)).sum().backward()

    failure = failure_of(train, norm=norm)

    assert failure.status == "deadlock"
    assert (failure.diagnosis.code, failure.diagnosis.ranks) == ("deadlock-rank-missing", (3,))


def test_a_rank_that_is_late_by_a_step_is_named_after_the_buckets_were_rebuilt():
    def train(rank):
        ddp = DistributedDataParallel(nn.Linear(3, 2))
        for _ in range(4 if rank == 1 else 5):
            ddp(torch.ones(4, 3)).sum().backward()

    failure = failure_of(train)

    assert failure.diagnosis.ranks == (1,)
    assert "returned without calling all_reduce" in failure.diagnosis.explanation


def test_a_rank_that_creates_no_ddp_is_named():
    def make(rank):
        if rank != 2:
            DistributedDataParallel(nn.Linear(3, 2))

    failure = failure_of(make)

    assert failure.diagnosis.ranks == (2,)
    assert "without calling all_gather #1 (in Distributed" in failure.diagnosis.explanation


def test_a_hook_of_the_program_is_used():
    def train():
        ddp = DistributedDataParallel(nn.Linear(3, 2))
        sizes = []

        def hook(state, bucket):
            state.append(bucket.buffer().numel())
            done = torch.futures.Future()
            done.set_result(torch.zeros_like(bucket.buffer()))
            return done

        ddp.register_comm_hook(sizes, hook)
        ddp(torch.ones(4, 3)).sum().backward()
        return [sizes, ddp.module.weight.grad.sum()]

    for sizes, total in run_ranks(train, 2):
        assert (sizes, total.item()) == ([8], 0.0)


def test_a_builtin_hook_is_used():
    def train(rank):
        ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        ddp(torch.tensor([[1 + rank * 2**-13]])).sum().backward()
        return ddp.module.weight.grad

    assert [value.item() for value in run_ranks(train, 2)] == [1.0, 1.0]  # float16 has 10 bits


@pytest.mark.slow
@pytest.mark.parametrize(("by_all", "wanted"), [(True, 0.75), (False, 1.5)])
def test_in_a_join_ranks_without_samples_count_as_configured(by_all, wanted):
    def train(rank, by_all):
        ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
        last = None
        with Join([ddp], divide_by_initial_world_size=by_all):
            for _ in range(3 if rank < 2 else 2):
                ddp.zero_grad()
                ddp(torch.tensor([rank + 1.0])).backward()
                last = ddp.module.weight.grad.item()
        return last

    assert run_ranks(train, 4, by_all=by_all)[0] == wanted


def test_the_death_of_a_rank_ends_the_others_wait():
    def train(rank):
        ddp = DistributedDataParallel(nn.Linear(3, 2))
        if rank == 1:
            raise ValueError("no more data")
        ddp(torch.ones(4, 3)).sum().backward()

    failure = failure_of(train)

    assert failure.diagnosis.ranks == (1,)
    assert "no more data" in failure.diagnosis.explanation
