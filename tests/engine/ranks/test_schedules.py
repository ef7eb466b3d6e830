"""Delays and faults at the calls of ranks, and a scale of many ranks."""

import os
import random
import threading
import time

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, kill, run_ranks, slow
from gradsync.ranks.host.schedule import Schedule
from gradsync.ranks.protocol.faults import Fault


def receives_from_any_rank(rank):
    box = torch.zeros(1)
    if rank == 0:
        return [dist.recv(box) for _ in range(2)]
    return dist.send(torch.ones(1), 0)


def three_sums(rank):
    total = torch.ones(2)
    for _ in range(3):
        dist.all_reduce(total)
    return total[0].item()


def test_a_schedule_shows_a_result_that_depends_on_arrival_and_can_be_repeated():
    with pytest.raises(RankFailure, match="The result depends on the schedule") as caught:
        run_ranks(receives_from_any_rank, 3, schedules=12)

    found = caught.value.observation
    explanation = found.failure.diagnosis.explanation
    number = int(explanation.rpartition("schedule=")[2].rstrip("."))
    assert f"Schedule {number} of 12 showed this" in explanation
    assert run_ranks(receives_from_any_rank, 3, schedule=number)[0] == found[0]


def race_in_many_ways(rank, pauses):
    """Let the messages of ranks 1 to 3 race, with sleeps of random length before each call."""
    random_pause, box, seen = random.Random(f"{pauses}, {rank}"), torch.zeros(1), []

    def pause():
        time.sleep(random_pause.choice([0, 0, 0.002, 0.01]))

    for _ in range(2):
        pause()
        dist.broadcast(torch.ones(1), 1)  # rank 1 can leave it before the others enter it
        pause()
        if rank == 0:
            seen += [dist.recv(box) for _ in range(4)]
        else:
            sent = dist.isend(torch.ones(1), 0)
            pause()
            summed = dist.all_reduce(ones := torch.ones(1), group=THREE[0], async_op=True)
            pause()
            seen.append(ones.item() == 3)  # a missing wait; gloo may have written a part of the sum
            while not summed.is_completed():
                seen.append("not yet")
            sent.wait()
            if rank == 3:
                dist.send(torch.ones(1), 0)
    return seen


THREE = []


def race_beside_a_group(rank, pauses):
    THREE.append(dist.new_group([1, 2, 3]))
    return race_in_many_ways(rank, pauses)


@pytest.mark.parametrize("schedule", [0, 2, 6, 9, 10, 11, 12])
def test_a_schedule_has_one_result_however_fast_the_ranks_are(schedule):
    results = [list(run_ranks(race_beside_a_group, 4, schedule=schedule, pauses=n)) for n in "abc"]

    assert results[0] == results[1] == results[2]


def test_a_correct_program_has_one_result_in_all_schedules():
    assert run_ranks(three_sums, 2, schedules=6)[1] == 8.0


@pytest.mark.parametrize(
    ("number", "ready", "first"),
    [
        (0, {1: "before", 2: "before"}, 1),
        (2, {1: "before", 2: "before"}, 2),  # rank 1 is late before its calls
        (2, {1: "after", 2: "before"}, 1),
        (5, {1: "after", 2: "before"}, 2),  # rank 1 is late after its calls
        (0, {0: "poll", 2: "before"}, 2),
    ],
)
def test_the_first_schedules_have_one_late_rank_each(number, ready, first):
    assert Schedule(number, 3).first(ready) == first


def test_the_other_schedules_are_random_and_the_same_each_time():
    ready = dict.fromkeys(range(3), "before")
    orders = [
        [schedule.first(ready) for _ in range(9)] for schedule in map(Schedule, (7, 7, 8), [3] * 3)
    ]

    assert orders[0] == orders[1] != orders[2]


def test_ranks_that_poll_take_turns():
    schedule = Schedule(7, 2)

    assert [schedule.first({0: "poll", 1: "poll"}) for _ in range(4)] == [0, 1, 0, 1]


def test_a_rank_is_killed_at_the_call_that_the_fault_names():
    def survive(rank):
        try:
            return three_sums(rank)
        except RuntimeError:
            return "lost"

    seen = run_ranks(survive, 3, faults=[kill(rank=1, at="all_reduce #3")])

    assert (seen[0], seen[1]) == ("lost", None)
    assert len(seen.collectives(1)) == 2


def test_threads_of_a_rank_take_turns_in_a_schedule():
    def function():
        group = dist.new_group()
        thread = threading.Thread(
            target=dist.all_reduce, args=(torch.ones(2),), kwargs={"group": group}
        )
        thread.start()
        dist.all_reduce(torch.ones(3))
        thread.join()

    run_ranks(function, 2, schedules=2)


def test_a_slow_rank_is_late_and_nothing_else():
    seen = run_ranks(three_sums, 2, faults=[slow(rank=1, seconds=0.2, at="all_reduce #2")])

    assert seen.seconds > 0.2
    assert list(seen) == [8.0, 8.0]


def test_a_fault_that_never_happens_is_an_error():
    with pytest.raises(RankFailure, match=r"never made the call of a planned fault: slow\(rank=1"):
        run_ranks(three_sums, 2, faults=[slow(rank=1, seconds=0.1, at="barrier #1")])


@pytest.mark.parametrize("at", ["all_reduce", "all_reduce #0", "#3"])
def test_a_fault_must_name_a_call(at):
    with pytest.raises(ValueError, match="at must name a call"):
        Fault("kill", 0, at)


def test_ranks_have_the_variables_of_torchrun_on_two_nodes():
    def read():
        names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        dist.init_process_group("gloo")
        return [int(os.environ[name]) for name in names]

    seen = run_ranks(read, 4, nodes=2, process_group=False)

    assert seen[3] == [3, 1, 1, 4, 2]


def test_a_mesh_has_the_names_and_sizes_that_were_given():
    def place(mesh):
        return mesh.mesh_dim_names, mesh["tp"].get_local_rank(), mesh.size()

    assert run_ranks(place, 4, mesh={"dp": 2, "tp": 2})[3] == (("dp", "tp"), 1, 4)


def test_the_same_random_seed_gives_the_same_numbers_and_others_on_each_rank():
    def draw():
        return torch.rand(1).item()

    first, again = (list(run_ranks(draw, 2, random_seed="a")) for _ in range(2))

    assert first == again
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nodes": 3}, "can't be divided among 3 nodes"),
        ({"mesh": {"dp": 3}}, "does not have 4 ranks"),
        ({"faults": [slow(rank=4, seconds=1)]}, "there are 4 ranks"),
    ],
)
def test_options_that_do_not_fit_the_number_of_ranks_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        run_ranks(three_sums, 4, **options)


@pytest.mark.slow
def test_the_explanation_of_many_ranks_groups_those_that_do_the_same():
    def skip(rank):
        if rank != 32:
            dist.barrier()

    with pytest.raises(RankFailure) as caught:
        run_ranks(skip, 64)

    assert caught.value.observation.failure.graph == (
        "ranks 0-31 and 33-63 -> rank 32: barrier #1 at test_schedules.py:"
        f"{skip.__code__.co_firstlineno + 2}",
        "rank 32 has returned",
    )
