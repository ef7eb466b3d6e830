"""Correct programs of many kinds, each for two or more ranks."""

import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def waits_for_handles(rank):
    tensors = [torch.ones(3) * rank for _ in range(5)]
    handles = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for handle in reversed(handles):
        handle.wait()
    return tensors[0].sum().item()


def goes_on_in_a_callback(rank):
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    if rank == 0:
        sent = future.then(lambda _: (time.sleep(0.3), dist.send(torch.ones(1), 1)))
        dist.recv(torch.ones(1), 1)
        sent.wait()
    future.wait()
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)


def leaves_a_handle_alone():
    dist.all_reduce(torch.ones(3), async_op=True)
    dist.barrier()
    dist.all_reduce(torch.ones(3), async_op=True)


def leaves_many_handles_alone():
    for _ in range(200):
        dist.all_reduce(torch.ones(3), async_op=True)
    dist.barrier()


def passes_messages_around(rank):
    world_size = dist.get_world_size()
    mine, theirs = torch.full((3,), float(rank)), torch.empty(3)
    for _ in range(world_size):
        sent = dist.isend(mine, (rank + 1) % world_size)
        dist.recv(theirs, (rank - 1) % world_size)
        sent.wait()
        mine.copy_(theirs)
    assert mine[0] == rank


def takes_messages_from_anyone(rank):
    others = list(range(1, dist.get_world_size()))
    if rank in others:
        dist.send(torch.ones(2), 0)
    else:
        assert sorted(dist.recv(torch.empty(2)) for _ in others) == others


def sends_and_returns_at_once(rank):
    if rank == 1:
        dist.isend(torch.ones(2), 0)
    if rank == 0:
        time.sleep(0.2)
        dist.recv(torch.ones(2), None)


def sends_less_than_is_wanted(rank):
    if rank == 0:
        dist.send(torch.ones(2), 1)
    if rank == 1:
        dist.recv(torch.ones(5), 0)


def crosses_tags(rank):
    if rank == 0:
        handles = [dist.isend(torch.ones(1) * tag, 1, tag=tag) for tag in range(3)]
        for handle in handles:
            handle.wait()
    if rank == 1:
        for tag in (2, 0, 1):
            inbox = torch.empty(1)
            dist.recv(inbox, 0, tag=tag)
            assert inbox == tag


def uses_subgroups(rank):
    world_size = dist.get_world_size()
    low, high = list(range((world_size + 1) // 2)), list(range((world_size + 1) // 2, world_size))
    groups = [dist.new_group(ranks) for ranks in (low, high) if ranks]
    for group in groups:
        dist.all_reduce(torch.ones(2), group=group)
        dist.barrier(group=group) if rank in dist.get_process_group_ranks(group) else None
    dist.barrier()


def founds_a_group_without_the_others(rank):
    if rank < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(torch.ones(2), group=pair)
    dist.barrier()


def exchanges_objects(rank):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {"rank": rank})
    said = [f"from {rank}"]
    dist.broadcast_object_list(said, 0)
    gathered = everyone if rank == 0 else None
    dist.gather_object(rank, gathered, 0)
    assert said == ["from 0"]


def reduces_nothing(rank):
    dist.all_reduce(torch.ones(0))
    dist.all_gather([torch.ones(0) for _ in range(dist.get_world_size())], torch.ones(0))
    time.sleep(0.05 * rank)
    dist.barrier()


def works_in_a_helper_thread(rank):
    seen = []

    def help_out():
        tensor = torch.ones(3) * rank
        dist.all_reduce(tensor)
        seen.append(tensor)

    helper = threading.Thread(target=help_out)
    helper.start()
    time.sleep(0.05 * rank)
    helper.join()
    dist.all_reduce(torch.ones(3))
    return len(seen)


def works_in_two_threads_on_two_groups(rank):
    other = dist.new_group()
    helper = threading.Thread(
        target=lambda: [dist.all_reduce(torch.ones(3), group=other) for _ in range(20)]
    )
    helper.start()
    for _ in range(10):
        dist.all_reduce(torch.ones(3))
        time.sleep(0.002 * rank)
    helper.join()
    dist.barrier()


def works_in_a_pool(rank):
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(dist.all_reduce, torch.ones(3) * rank).result()
        dist.barrier()


def reads_with_workers(rank):
    data = TensorDataset(torch.arange(12.0))
    loader = DataLoader(data, batch_size=3, num_workers=1)
    total = torch.stack([batch.sum() for (batch,) in loader]).sum()
    dist.all_reduce(total)
    assert total == 66 * dist.get_world_size()


def starts_over(rank):
    dist.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(f"{tempfile.gettempdir()}/another", 2)  # the folder of the run
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))


def keeps_a_world_of_its_own(rank):
    world_size = dist.get_world_size()
    dist.destroy_process_group()
    if rank == 0:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(2))
        dist.barrier()
    return world_size


def ends_the_group():
    dist.barrier()
    dist.destroy_process_group()


PROGRAMS = [
    waits_for_handles,
    goes_on_in_a_callback,
    leaves_a_handle_alone,
    leaves_many_handles_alone,
    passes_messages_around,
    takes_messages_from_anyone,
    sends_and_returns_at_once,
    sends_less_than_is_wanted,
    crosses_tags,
    uses_subgroups,
    founds_a_group_without_the_others,
    exchanges_objects,
    reduces_nothing,
    works_in_a_helper_thread,
    works_in_two_threads_on_two_groups,
    works_in_a_pool,
    reads_with_workers,
    ends_the_group,
]
