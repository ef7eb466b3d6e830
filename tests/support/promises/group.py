"""What starting and ending the process group promises."""

import socket
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gradsync.records import Diagnosis
from gradsync.testing import check, free_port, raise_mistake
from gradsync.text import FORGOTTEN, ranks_text
from support.probes import raised
from support.probes.gpus import taken_among_gpus
from support.probes.late_rank import pass_gate, wait_for
from support.probes.launching import connected_to
from support.probes.lazy_group import LazyGroup
from support.rules.gpus import idle_gpus
from support.rules.launching import (
    address_taken,
    another_rank_passed,
    left_waiting,
    never_connected,
    none_started,
    variable_not_set,
    without_a_group,
    wrong_address,
)

GUIDE = "Launching ranks"
MASTER = "127.0.0.2"  # also an address of this machine, but not the usual one
TIME_LIMIT = 10.0  # seconds; setting up a group takes a tenth of one
UNDECIDED = "undefined"  # the backend if torch chooses one for each device type
USUAL_PORTS = (29500, 12355)  # torch's default, and the port in its tutorials


def info_of(trainer, rank, world_size, port, address="127.0.0.1"):
    """Return a rank's info; the local rank differs from the rank."""
    return trainer.RankInfo(rank, world_size, (rank + 1) % world_size, address, port)


def probe_group(rank, world_size, trainer, port):
    """Set up a group while the usual ports are in use; report the properties of the group."""
    taken = [listen(usual) for usual in USUAL_PORTS] if rank == 0 else []
    info = info_of(trainer, rank, world_size, port, MASTER)
    device = trainer.setup_distributed(info)
    kind = type(device).__name__
    sort = device.type if kind == "device" else "cpu"  # a CPU may have any index
    total = torch.ones(1)
    dist.all_reduce(total)
    del taken
    there = connected_to(port) if rank != 0 else []  # rank 0 may use another address for itself
    group = [dist.get_rank(), dist.get_world_size()]
    return [group, there, dist.get_backend(), kind, sort, total.item()]


def ranks_passed(ranks, world_size):
    """Return, by rank, the `rank` that setup_distributed passes on, or None if it is not seen."""

    def probe(rank, world_size, trainer):
        passed = []

        def note(*_, **options):
            passed.append(options.get("rank"))
            raise InterruptedError

        dist.init_process_group = note
        with suppress(Exception):
            trainer.setup_distributed(info_of(trainer, rank, world_size, USUAL_PORTS[0]))
        return passed[0] if passed and isinstance(passed[0], int) else None

    return list(ranks(probe, world_size, process_group=False))


def await_listener(port):
    """Return when a process listens on a port, or after a second."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=0.1).close()
        except OSError:
            time.sleep(0.01)
    return None


def listen(port):
    """Listen on a port, even if connections to it have just ended; None if it is in use."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            return socket.create_server(("", port))
        except OSError:
            time.sleep(0.01)
    return None


def group_of_every_rank(ranks, world_size):
    """Check that the default group has all ranks, and uses gloo without a GPU."""
    seen = ranks(
        probe_group,
        world_size,
        process_group=False,
        timeout=TIME_LIMIT,
        mistakes=[
            variable_not_set,
            none_started,
            another_rank_passed(lambda: ranks_passed(ranks, world_size)),
            address_taken,
            never_connected,
            left_waiting,
        ],
        port=free_port(),
    )

    every = range(world_size)
    check(
        [value[0] for value in seen] == [[rank, world_size] for rank in every],
        "launcher-not-read",
        f"The ranks' values of [rank, world size] in the group are {[value[0] for value in seen]}. "
        "They must be the `rank` and the `world_size` in `info`, not the `local_rank`.",
        ranks=every,
        guide=GUIDE,
    )
    raise_mistake(wrong_address([value[1] for value in seen], MASTER))
    check(
        {value[3] for value in seen} == {"device"},
        "wrong-signature",
        f"setup_distributed returns an object of type {seen[0][3]}. It must return a torch.device."
        f"{f' {FORGOTTEN}' if seen[0][3] == 'NoneType' else ''}",
        ranks=every,
        guide=GUIDE,
    )
    away = [rank for rank in every if seen[rank][4] != "cpu"]
    check(
        not away,
        "wrong-device",
        f"On a machine without a GPU, setup_distributed returns a device of type "
        f"{seen[away[0]][4] if away else ''} on {ranks_text(away)}. Return GPU number `local_rank` "
        "only if CUDA is available, and else the CPU.",
        ranks=away,
        guide=GUIDE,
    )
    check(
        all(
            ("gloo" in value[2] or value[2] == UNDECIDED) and value[5] == world_size
            for value in seen
        ),
        "exception",
        f"On a machine without a GPU, rank 0 uses {seen[0][2]}. The group must use gloo.",
        ranks=every,
        guide=GUIDE,
    )


def setup_waits(ranks):
    """Check that setup_distributed waits for a late rank, even if a backend connects lazily."""

    def probe(rank, world_size, trainer, port):
        dist.Backend.register_backend("lazy", LazyGroup, devices=["cpu"])
        if rank != 0:  # otherwise rank 1 may have to retry, and is not early
            wait_for("late", 0)
            await_listener(port)
        pass_gate("late", rank, world_size, last=2)
        called = time.monotonic()
        trainer.setup_distributed(info_of(trainer, rank, world_size, port), backend="lazy")
        return [called, time.monotonic()]

    seen = ranks(
        probe,
        3,
        process_group=False,
        timeout=TIME_LIMIT,
        mistakes=[
            another_rank_passed(lambda: ranks_passed(ranks, 3)),
            address_taken,
            never_connected,
            left_waiting,
        ],
        port=free_port(),
    )

    early = [rank for rank in (0, 1) if seen[rank][1] < seen[2][0]]
    check(
        not early,
        "no-rank-waits",
        f"setup_distributed returned on {ranks_text(early)} before rank 2 had called it. This "
        "test's backend, like nccl, only connects at the first collective. Make all ranks wait "
        "for each other in setup_distributed.",
        ranks=early,
        guide=GUIDE,
    )


def backend_and_timeout_used(ranks, seconds):
    """Check that `backend` and `timeout` are used, and that the default timeout is 60 s."""

    def probe(rank, world_size, trainer, ports, seconds):
        timeouts = []

        def create(*place):
            timeouts.append(place[-1].total_seconds())
            return LazyGroup(*place)

        dist.Backend.register_backend("lazy", create, devices=["cpu"])
        backends, waits = [], []
        for port, options in zip(ports, ({"timeout": timedelta(seconds=seconds)}, {}), strict=True):
            info = info_of(trainer, rank, world_size, port)
            trainer.setup_distributed(info, backend="lazy", **options)
            backends.append(dist.get_backend())
            waits.append(timeouts[0] if timeouts else None)
            timeouts.clear()
            dist.destroy_process_group()
        return [waits, backends]

    [[waits, backends]] = ranks(
        probe,
        1,
        process_group=False,
        timeout=TIME_LIMIT,
        mistakes=[none_started, never_connected],
        ports=[free_port() for _ in range(2)],
        seconds=seconds,
    )

    check(
        backends == ["lazy"] * 2,
        "setting-ignored",
        f"Called with a backend, setup_distributed starts a group with {backends[0]} instead. Pass "
        "`backend` on to the process group; use the default only if it is None.",
        ranks=[0],
        guide=GUIDE,
    )
    check_wait(waits[0], seconds, f"a timeout of {seconds} s")
    check_wait(waits[1], 60, "no timeout")


def own_gpu_used(ranks, local_rank):
    """Check that, among simulated GPUs, a rank uses that of its local rank, and nccl."""

    def probe(trainer, local_rank, port):
        return taken_among_gpus(trainer, 0, 1, local_rank, "127.0.0.1", port)

    settings = {"process_group": False, "timeout": TIME_LIMIT, "port": free_port()}
    [taken] = ranks(probe, 1, mistakes=[never_connected], local_rank=local_rank, **settings)

    raise_mistake(idle_gpus(taken, local_rank))


def check_wait(seconds, wanted, asked):
    check(
        seconds == wanted,
        "setting-ignored",
        f"Called with {asked}, setup_distributed starts a group with a timeout of {seconds:g} s. "
        "Pass `timeout` on to the process group; its default is 60 s.",
        ranks=[0],
        guide=GUIDE,
    )


def group_destroyed(ranks):
    """Check that, after cleanup_distributed, no rank has a default process group."""

    def probe(rank, trainer):
        Path(f"up-{rank}").touch()
        while not Path(f"up-{1 - rank}").exists():  # no rank leaves before the other has started
            time.sleep(0.01)
        trainer.cleanup_distributed()
        return dist.is_initialized()

    ended = without_a_group(
        "cleanup_distributed uses the process group after destroying it. Destroy the group last.",
        GUIDE,
    )
    seen = ranks(probe, 2, mistakes=[ended])

    left = [rank for rank in range(2) if seen[rank] is not False]
    raise_mistake(inverted(ranks) if left else None)
    check(
        not left,
        "group-not-ended",
        f"After cleanup_distributed(), the process group still exists on {ranks_text(left)}. Every "
        "rank must destroy it.",
        ranks=left,
        guide=GUIDE,
    )


def inverted(ranks):
    """Recognise a cleanup_distributed that only keeps a group: its condition is inverted."""

    def probe(trainer):
        fails = raised(trainer.cleanup_distributed) is not None
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with suppress(Exception):
            trainer.cleanup_distributed()
        return fails and dist.is_initialized()

    if not all(ranks(probe, 1, process_group=False)):
        return None
    text = (
        "cleanup_distributed keeps an existing process group, and raises an exception if there is "
        "none. Is its condition inverted? Destroy the group if it is initialized."
    )
    return Diagnosis("group-not-ended", (), text, guide=GUIDE)


def nothing_without_group(ranks):
    """Check cleanup_distributed without a process group, and twice."""

    def probe(trainer):
        trainer.cleanup_distributed()
        started = dist.is_initialized()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        trainer.cleanup_distributed()
        trainer.cleanup_distributed()
        return [started, dist.is_initialized()]

    no_group = without_a_group(
        "cleanup_distributed fails without a process group. If none was started, or it is already "
        "destroyed, do nothing: torch.distributed has a function that checks this.",
        GUIDE,
    )
    rules = [lambda seen, _: inverted(ranks) if seen.failure else None, no_group]
    [[started, left]] = ranks(probe, 1, process_group=False, mistakes=rules)

    check(
        started is False,
        "group-not-ended",
        "cleanup_distributed() started a process group. It must only destroy one.",
        guide=GUIDE,
    )
    check(
        left is False,
        "group-not-ended",
        "Without a group, cleanup_distributed() does nothing, as it should. But a group that is "
        "started later, of one rank, still exists after two calls. It must destroy any group.",
        guide=GUIDE,
    )
