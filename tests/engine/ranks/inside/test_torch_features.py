"""Features of torch that start collectives themselves: recorded, and deadlocks are explained."""

import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gradsync import RankFailure, run_ranks


def ddp_backward(*, takes_part):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    ddp(torch.ones(1, 3)).sum().backward()
    loss = ddp(torch.ones(1, 3)).sum()
    if takes_part:
        loss.backward()


def ddp_hook(*, takes_part):
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(3, 4))
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    loss = ddp(torch.ones(1, 3)).sum()
    if takes_part:
        loss.backward()


def fsdp_forward(*, takes_part):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    if takes_part:
        model(torch.ones(1, 4))


def fsdp_backward(*, takes_part):
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for layer in (*model, model):
        fully_shard(layer)
    loss = model(torch.ones(1, 4)).sum()
    if takes_part:
        loss.backward()


def checkpoint(*, takes_part, folder):
    from torch.distributed import checkpoint

    if takes_part:
        checkpoint.save({"weight": torch.ones(3)}, checkpoint_id=folder)


def pipeline(*, takes_part):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(3, 3), rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    if takes_part:
        inputs = [torch.ones(2, 3)] if rank == 0 else []
        schedule.step(*inputs, target=torch.ones(2, 3) if rank == size - 1 else None)


def functional_collective(*, takes_part):
    if takes_part:
        functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).add(1)


def compiled(*, takes_part):
    group = dist.new_group()

    @partial(torch.compile, backend="aot_eager", fullgraph=True)
    def step(tensor):
        dist.all_reduce(tensor, group=group)
        return tensor + 1

    if takes_part:
        step(torch.ones(2))


def dtensor(*, takes_part):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    if takes_part:
        sharded.full_tensor()


def device_mesh(*, takes_part):
    from torch.distributed.device_mesh import init_device_mesh

    if takes_part:
        init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("data", "tensor"))


def batched_messages(*, takes_part):
    rank, size = dist.get_rank(), dist.get_world_size()
    if takes_part:
        sends = dist.P2POp(dist.isend, torch.ones(2), (rank + 1) % size)
        receives = dist.P2POp(dist.irecv, torch.empty(2), (rank - 1) % size)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()


def coalesced(*, takes_part):
    if takes_part:
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(3))


def coalesced_gathers(*, takes_part):
    if takes_part:
        with dist._coalescing_manager():
            for _ in range(2):
                dist.all_gather_into_tensor(torch.empty(2 * dist.get_world_size()), torch.ones(2))


def objects(*, takes_part):
    if takes_part:
        dist.all_gather_object([None] * dist.get_world_size(), "an object")


def subgroup(*, takes_part):
    group = dist.new_group([0, 1])
    if takes_part and dist.get_rank() < 2:
        dist.all_reduce(torch.ones(2), group=group)


def monitored_barrier(*, takes_part):
    if takes_part:
        dist.monitored_barrier()


def chained_future(*, takes_part):
    if takes_part:
        future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        future.then(lambda done: done.value()[0] * 2).wait()


FEATURES = {  # -> the collective that rank 1 skips, in words that no version of torch changes
    ddp_backward: "all_reduce #6 (in backward, 26 x float32)",
    ddp_hook: "all_reduce #4 (in backward, 16 x float16)",
    fsdp_forward: "all_gather_into_tensor #1 (in FSDPSequential, 15 x float32)",
    fsdp_backward: "all_gather_into_tensor #3 (in backward, 5 x float32)",
    checkpoint: "all_gather #1 (in save, 1 x int64)",
    pipeline: "(in step, 1 x int32)",
    functional_collective: "all_reduce #1 (in a functional collective, 2 x float32)",
    compiled: "all_reduce #1 (2 x float32)",
    dtensor: "(in full_tensor, 4 x float32)",
    device_mesh: "new_group #1 (in init_device_mesh)",
    batched_messages: "send #1 to rank 1 (in batch_isend_irecv, 2 x float32)",
    coalesced: "all_reduce_coalesced #1 (5 x float32)",
    coalesced_gathers: "all_gather_into_tensor_coalesced #1 (4 x float32)",
    objects: "#1 (in all_gather_object, 1 x int64)",
    subgroup: "all_reduce #1 (2 x float32)",
    monitored_barrier: "monitored_barrier #1",
    chained_future: "all_reduce #1 (2 x float32)",
}


def observe(function, tmp_path, skips=None):
    inputs = {"folder": str(tmp_path)} if function is checkpoint else {}

    def run(rank, **inputs):
        warnings.simplefilter("ignore")  # from deprecated names in torch
        function(takes_part=rank != skips, **inputs)

    return run_ranks(run, 2, timeout=60, **inputs)


@pytest.mark.parametrize("function", FEATURES, ids=lambda function: function.__name__)
def test_it_runs_and_its_collectives_are_recorded(function, tmp_path):
    seen = observe(function, tmp_path)

    entered = {(e.rank, e.call) for e in seen.events if e.kind == "enter"}
    assert {rank for rank, _ in entered} == {0, 1}
    assert {(e.rank, e.call) for e in seen.events if e.kind == "exit"} == entered


@pytest.mark.parametrize(
    ("function", "call"), FEATURES.items(), ids=[function.__name__ for function in FEATURES]
)
def test_a_rank_that_skips_it_is_named_at_once(function, call, tmp_path):
    with pytest.raises(RankFailure) as caught:
        observe(function, tmp_path, skips=1)

    seen = caught.value.observation
    assert seen.failure.status == "deadlock"
    assert seen.failure.diagnosis.ranks == (1,)
    assert call in seen.failure.diagnosis.explanation
    assert "test_torch_features.py" in seen.failure.diagnosis.where
    assert seen.seconds - max(event.seconds for event in seen.events) < 1


def test_a_part_that_a_backend_splits_off_is_observed():
    def split(rank):
        part = dist.new_group([0, 1]).plain  # gloo can't split: nccl returns such a group
        dist.group.WORLD.plain = SimpleNamespace(split_group=lambda *_: part)
        group = dist.group.WORLD.split_group([0, 1])
        distributed_c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
        total = torch.tensor([rank + 1.0])
        group.allreduce([total]).wait()
        return total.item()

    seen = run_ranks(split, 2)

    assert list(seen) == [3.0, 3.0]
    assert seen.collectives(0)[-1].op == "all_reduce"
