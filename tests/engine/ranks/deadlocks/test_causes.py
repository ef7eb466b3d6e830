"""The explanation of a deadlock names its cause."""

import queue
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import rpc
from torch.distributed.device_mesh import init_device_mesh

from gradsync import run_ranks
from gradsync.ranks.deadlocks.calls import disagreement
from gradsync.ranks.inside.watch import process_group
from gradsync.records import Collective

LATE = 1.0  # seconds; a deadlock would be reported earlier


def other_members(rank):
    dist.new_group([0, 3] if rank in (0, 3) else [1, 2])


def other_members_of_one_rank(rank):
    dist.new_group([0, 1, 2] if rank < 3 else [3])


def other_order(rank):
    for ranks in ([0, 1], [2, 3]) if rank < 2 else ([2, 3], [0, 1]):
        dist.new_group(ranks)


def other_mesh(rank):
    init_device_mesh("cpu", (2, 2) if rank else (4, 1))


def other_split(rank):
    dist.split_group(dist.group.WORLD, [[0, 1], [2, 3]] if rank else [[0, 2], [1, 3]])


def other_source_without_its_group(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.broadcast(torch.ones(2), src=0 if rank < 2 else 2)
    del groups


def only_the_subgroup_without_its_group(rank):
    dist.new_group([2, 3])
    if rank > 1:
        dist.broadcast(torch.ones(2), src=2)


def outsiders_without_the_group(rank):
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2), group=group if rank < 2 else None)


def members_without_the_group(rank):
    dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(2))
    dist.barrier()


def one_member_without_the_group(rank):
    group = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(2), group=group if rank == 0 else None)


def other_order_of_sizes(rank):
    for size in (3, 5) if rank else (5, 3):
        dist.all_reduce(torch.ones(size))


def other_order_of_lines(rank):
    if rank:
        dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(5))
    if not rank:
        dist.all_reduce(torch.ones(3))


def uses_its_groups_in_another_order(rank):
    groups = [dist.new_group(), dist.new_group()]
    for group in groups if rank % 2 else groups[::-1]:
        dist.all_reduce(torch.ones(1), group=group)


def other_tags(rank):
    if rank == 0:
        dist.send(torch.ones(2), 1, tag=3)
    elif rank == 1:
        dist.recv(torch.ones(2), 0, tag=4)


def waits_for_a_key(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["ready"])
    else:
        dist.barrier()


def returns_without_the_key(rank):
    if rank == 0:
        dist.distributed_c10d._get_default_store().get("ready")


def returns_without_the_last_key(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.set("rank 1", "ready")
    dist.barrier()
    if rank == 0:
        store.wait(["rank 1", "rank 2"])


def skips_an_iteration(rank):
    for step in range(20):
        if rank == 1 and step == 3:
            continue
        dist.all_reduce(torch.ones(8))


def runs_other_modules(rank):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (4,))
    text, image = (fully_shard(nn.Linear(4, size), mesh=mesh) for size in (4, 8))
    if rank == 0:
        image(torch.ones(2, 4))
    text(torch.ones(2, 4))


def uses_other_parameters_of_a_unit(rank):
    from torch.distributed.fsdp import fully_shard

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, both):
            return self.always(x) + (self.sometimes(x) if both else 0)

    model = fully_shard(Branches(), mesh=init_device_mesh("cpu", (4,)))
    model(torch.ones(1, 4), rank == 0).sum().backward()


def ends_its_groups_early(rank):
    if rank != 2:
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


def only_members_make_the_group(rank):
    if rank < 2:
        dist.new_group([0, 1])
    dist.barrier()


def waits_in_a_finally(rank):
    try:
        if rank == 1:
            raise ValueError("no batch")
        dist.all_reduce(torch.ones(1))
    finally:
        dist.barrier()


def waits_for_the_others_after_an_error(rank):
    try:
        if rank != 1:
            raise KeyError("a")
    except KeyError:
        dist.barrier()


CAUSES = {
    waits_in_a_finally: "Rank 1 raised ValueError at test_causes.py:",
    waits_for_the_others_after_an_error: "Ranks 0, 2 and 3 raised KeyError at test_causes.py:",
    other_members: "Ranks 0 and 3 pass [0, 3]",
    other_members_of_one_rank: "Rank 3 passes [3]",
    other_order: "The ranks pass different lists to new_group #1.",
    only_members_make_the_group: "including those that are not in the group.",
    other_mesh: "The ranks pass different lists to new_group",
    other_split: "Rank 0 passes [[0, 2], [1, 3]]",
    other_source_without_its_group: "is `group=` missing?",
    only_the_subgroup_without_its_group: "is `group=` missing?",
    outsiders_without_the_group: "Ranks 0 and 1 called all_reduce in a group without ranks 2 and 3",
    members_without_the_group: "Ranks 0 and 1 have a group of their own: is `group=` missing?",
    one_member_without_the_group: "in a group of 2 ranks, but rank 1 in a group of 4",
    other_order_of_sizes: "with the same number of elements, in the same order.",
    other_order_of_lines: "from different places, with tensors that do not match.",
    uses_its_groups_in_another_order: "They wait in different process groups: ranks 0 and 2 in",
    other_tags: "rank 0 sends with tag 3, rank 1 receives with tag 4",
    waits_for_a_key: "Rank 0 is waiting in store.wait #1 (the key ready)",
    returns_without_the_key: "returned without setting the key ready of the store",
    returns_without_the_last_key: "returned without setting the key rank 2 of the store",
    skips_an_iteration: "rank 1 called it 19 times and ranks 0, 2 and 3 called it 20 times",
    runs_other_modules: "The ranks run different modules at the same point.",
    uses_other_parameters_of_a_unit: "without gradients: sometimes.weight, sometimes.bias",
    ends_its_groups_early: "Rank 2 called destroy_process_group",
}


@pytest.mark.parametrize("function", CAUSES, ids=lambda function: function.__name__)
def test_the_cause_is_named(function, failure_of):
    failure = failure_of(function, 4)

    assert failure.status == "deadlock"
    assert CAUSES[function] in failure.diagnosis.explanation
    assert failure.diagnosis.where.startswith("test_causes.py:")


def test_an_exception_that_is_handled_again_and_again_is_no_cause(failure_of):
    def poll(rank):
        requests = queue.Queue()
        for _ in range(3 - (rank == 1)):
            try:
                requests.get_nowait()
            except queue.Empty:
                dist.all_reduce(torch.ones(1))

    explanation = failure_of(poll, 3).diagnosis.explanation

    assert "Empty" not in explanation
    assert explanation.startswith("Rank 1 returned without calling all_reduce #3")


def test_two_threads_of_one_group_are_named(failure_of):
    def mix(rank):
        thread = threading.Thread(target=dist.barrier)
        if rank == 0:
            dist.all_reduce(torch.ones(1))
        thread.start()
        thread.join()
        if rank == 1:
            dist.all_reduce(torch.ones(1))

    failure = failure_of(mix, 2)

    assert "in a second thread" in failure.diagnosis.explanation


def test_shutdown_of_rpc_against_a_barrier_is_explained(failure_of):
    def mix(rank, world_size):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
        if rank == 0:
            rpc.shutdown()
        else:
            dist.barrier()

    failure = failure_of(mix, 2)

    assert "Rank 0 is waiting in rpc.shutdown #1" in failure.diagnosis.explanation


def reduce_later():
    time.sleep(LATE)
    dist.all_reduce(torch.ones(1))


def test_a_call_of_rpc_may_enter_a_collective_on_another_rank():
    def meet(rank, world_size):
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
        if rank == 0:
            later = rpc.rpc_async("worker1", reduce_later)
            dist.all_reduce(torch.ones(1))
            later.wait()
            result = rpc.remote("worker1", reduce_later)
            dist.all_reduce(torch.ones(1))
            result.to_here()
        rpc.shutdown()

    run_ranks(meet, 2)


def test_the_key_of_another_store_may_come_from_outside():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def wait(port):
        return len(dist.TCPStore("127.0.0.1", port, is_master=False).get("go"))

    threading.Timer(LATE, store.set, ["go", "yes"]).start()

    assert list(run_ranks(wait, 2, port=store.port)) == [3, 3]


def alone(rank):
    return dist.new_group([rank]).size()


def with_local_synchronization(rank):
    mine = [0, 1] if rank < 2 else [2, 3]
    group = dist.new_group(mine, use_local_synchronization=True)
    dist.barrier(group=group)
    return group.size()


def waits_for_a_key_that_comes(rank):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.all_reduce(torch.ones(1), group=dist.new_group([0]))
    else:
        dist.new_group([0])
    if rank == 3:
        store.set("ready", "yes")
    return len(store.get("ready"))


def leaves_at_other_times(rank):
    dist.barrier()
    if rank == 0:
        dist.destroy_process_group()
    return 1


CORRECT = [
    alone, with_local_synchronization, waits_for_a_key_that_comes,
    leaves_at_other_times,
]  # fmt: skip


@pytest.mark.parametrize("function", CORRECT, ids=lambda function: function.__name__)
def test_similar_programs_that_are_right_pass(function):
    assert all(run_ranks(function, 4))


def test_uneven_sizes_reach_a_backend_that_allows_them(failure_of):
    def gather(rank):
        process_group.UNEVEN_BACKENDS.add("gloo")  # which refuses them itself
        dist.all_gather([torch.ones(1), torch.ones(2)], torch.ones(rank + 1))

    failure = failure_of(gather, 2)

    assert failure.status == "error"
    assert "all_gather" not in failure.diagnosis.explanation


def test_sizes_that_do_not_match_are_found_in_an_uneven_all_gather(failure_of):
    def gather(rank):
        process_group.UNEVEN_BACKENDS.add("gloo")
        dist.all_gather([torch.ones(1), torch.ones(3)], torch.ones(rank + 1))

    failure = failure_of(gather, 2)

    assert "Rank 1 sends 2 x float32 to itself" in failure.diagnosis.explanation


def test_uneven_sizes_may_be_gathered_where_the_backend_allows_it():
    calls = [
        Collective("all_gather", "0", (0, 1), ((n,),), "float32", sends=(n, n), receives=(1, 2))
        for n in (1, 2)
    ]

    assert disagreement(calls) is None
