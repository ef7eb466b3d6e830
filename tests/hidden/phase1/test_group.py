"""How the ranks meet in a process group, and part."""

import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradsync.diagnose.gpus import idle_gpus
from gradsync.diagnose.launching import (
    address_taken,
    left_alone,
    met_elsewhere,
    never_met,
    none_started,
    variable_not_set,
    without_a_group,
)
from gradsync.probes.gates import pass_gate, wait_for
from gradsync.probes.gpus import taken_among_gpus
from gradsync.probes.launching import connected_to
from gradsync.probes.lazy_group import LazyGroup
from gradsync.testing import check, exercise, free_port, hold
from gradsync.text import ranks_text

GUIDE = "Launching ranks"
MASTER = "127.0.0.2"  # this machine too, but not by its usual name
PATIENCE = 10.0  # seconds to meet in; who meets does so in a tenth of one
UNDECIDED = "undefined"  # the backend, for torch, which then takes the one that a device needs
USUAL_PORTS = (29500, 12355)  # torch's own default, and that of its tutorials


def info_of(trainer, rank, world_size, port, address="127.0.0.1"):
    """Return a rank's info; its number on this machine is another than among all."""
    return trainer.RankInfo(rank, world_size, (rank + 1) % world_size, address, port)


def probe_group(rank, world_size, trainer, port):
    """Set up a group while the usual ports are taken; say what is known of it."""
    taken = [listen(usual) for usual in USUAL_PORTS] if rank == 0 else []
    info = info_of(trainer, rank, world_size, port, MASTER)
    device = trainer.setup_distributed(info)
    kind = type(device).__name__
    sort = device.type if kind == "device" else "cpu"  # of a CPU, any index will do
    total = torch.ones(1, device=sort)
    dist.all_reduce(total)
    del taken
    there = connected_to(port) if rank != 0 else []  # rank 0 may well call itself otherwise
    group = [dist.get_rank(), dist.get_world_size()]
    return [group, there, dist.get_backend(), kind, sort, total.item()]


def await_listener(port):
    """Return when somebody listens on a port, or after a second."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=0.1).close()
        except OSError:
            time.sleep(0.01)
    return None


def listen(port):
    """Take a port, also from connections that have ended; None where another process keeps it."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            return socket.create_server(("", port))
        except OSError:
            time.sleep(0.01)
    return None


@pytest.mark.parametrize("world_size", [1, 3])
@exercise("phase1/setup_distributed", points=2)
def test_the_group_is_up_on_every_rank(ranks, world_size):
    """Afterwards the default group has every rank, on gloo where there is no GPU."""
    seen = ranks(
        probe_group,
        world_size,
        process_group=False,
        timeout=PATIENCE,
        mistakes=[variable_not_set, none_started, address_taken, never_met, left_alone],
        port=free_port(),
    )

    every = range(world_size)
    check(
        [value[0] for value in seen] == [[rank, world_size] for rank in every],
        "launcher-not-read",
        f"by rank, the group says [rank, world size] {[value[0] for value in seen]}: they are to "
        "be those of `info`, whose `local_rank` is another number",
        ranks=every,
        guide=GUIDE,
    )
    hold(met_elsewhere([value[1] for value in seen], MASTER))
    check(
        {value[3] for value in seen} == {"device"},
        "wrong-signature",
        f"setup_distributed returns a {seen[0][3]}: a torch.device is wanted",
        ranks=every,
        guide=GUIDE,
    )
    check(
        all(
            ("gloo" in value[2] or value[2] == UNDECIDED)
            and value[3:] == ["device", "cpu", world_size]
            for value in seen
        ),
        "exception",
        "where there is no GPU the group is to use gloo and the CPU: rank 0 has "
        f"{seen[0][2]} and {seen[0][4]}",
        ranks=every,
        guide=GUIDE,
    )


@exercise("phase1/setup_distributed", points=1)
def test_it_returns_only_when_every_rank_is_up(ranks):
    """A rank that is early waits for the late one, on a backend that does not wait by itself."""

    def probe(rank, world_size, trainer, port):
        dist.Backend.register_backend("lazy", LazyGroup, devices=["cpu"])
        if rank != 0:  # else rank 1 may have to try twice, and not be early at all
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
        timeout=PATIENCE,
        mistakes=[address_taken, never_met, left_alone],
        port=free_port(),
    )

    early = [rank for rank in (0, 1) if seen[rank][1] < seen[2][0]]
    check(
        not early,
        "no-rank-waits",
        f"setup_distributed returned on {ranks_text(early)} before rank 2 had even "
        "called it, on a backend that connects at the first collective only, as nccl does: "
        "something in it has to wait for all ranks",
        ranks=early,
        guide=GUIDE,
    )


@exercise("phase1/setup_distributed", points=1)
def test_the_timeout_holds(ranks):
    """Collectives wait as long as `timeout` says, or else for 60 s; GPUs are taken if there are."""

    def probe(rank, world_size, trainer, ports):
        told = []

        def create(*place):
            told.append(place[-1].total_seconds())
            return LazyGroup(*place)

        dist.Backend.register_backend("lazy", create, devices=["cpu"])
        backends, waits = [], []
        for port, options in zip(ports, ({"timeout": timedelta(seconds=7)}, {}), strict=False):
            info = info_of(trainer, rank, world_size, port)
            trainer.setup_distributed(info, backend="lazy", **options)
            backends.append(dist.get_backend())
            waits.append(told[0] if told else None)
            told.clear()
            dist.destroy_process_group()
        return [waits, backends, taken_among_gpus(trainer, 0, 1, 3, "127.0.0.1", ports[-1])]

    [[waits, backends, taken]] = ranks(
        probe,
        1,
        process_group=False,
        timeout=PATIENCE,
        mistakes=[none_started, never_met],
        ports=[free_port() for _ in range(3)],
    )

    check(
        backends == ["lazy"] * 2,
        "setting-ignored",
        f"asked for a backend by its name, setup_distributed starts a group on {backends[0]}: "
        "`backend` has to reach the group, and the default is for where it is None",
        ranks=[0],
        guide=GUIDE,
    )
    hold_wait(waits[0], 7, "a timeout of 7 s")
    hold_wait(waits[1], 60, "no timeout")
    hold(idle_gpus(taken, local_rank=3))


def hold_wait(seconds, wanted, asked):
    check(
        seconds == wanted,
        "setting-ignored",
        f"asked for {asked}, setup_distributed started a group whose collectives wait {seconds:g} "
        "s for a rank that does not come: `timeout` has to reach the group, and is 60 s where "
        "it is not given",
        ranks=[0],
        guide=GUIDE,
    )


@exercise("phase1/cleanup_distributed", points=1)
def test_the_group_is_gone_afterwards(ranks):
    """After cleanup there is no default group, on any rank."""

    def probe(rank, trainer):
        Path(f"up-{rank}").touch()
        while not Path(f"up-{1 - rank}").exists():  # no rank leaves before the other is up
            time.sleep(0.01)
        trainer.cleanup_distributed()
        return dist.is_initialized()

    ended = without_a_group(
        "cleanup_distributed uses the process group after it has ended it: that is the last that "
        "is done with a group",
        GUIDE,
    )
    seen = ranks(probe, 2, mistakes=[ended])

    left = [rank for rank in range(2) if seen[rank] is not False]
    check(
        not left,
        "group-not-ended",
        "after cleanup_distributed() the process group is still there on "
        f"{ranks_text(left)}: every rank has to end it",
        ranks=left,
        guide=GUIDE,
    )


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_without_a_group_is_harmless(ranks):
    """It may be called twice, or with no group ever started."""

    def probe(trainer):
        trainer.cleanup_distributed()
        started = dist.is_initialized()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        trainer.cleanup_distributed()
        trainer.cleanup_distributed()
        return [started, dist.is_initialized()]

    no_group = without_a_group(
        "without a process group cleanup_distributed fails: where none was started, or it has "
        "ended already, there is nothing to do. torch.distributed can tell which is the case",
        GUIDE,
    )
    [[started, left]] = ranks(probe, 1, process_group=False, mistakes=[no_group])

    check(
        started is False,
        "group-not-ended",
        "cleanup_distributed() started a process group",
        guide=GUIDE,
    )
    check(
        left is False,
        "group-not-ended",
        "with no group cleanup_distributed() does no harm, but a group that was started then is "
        "still there after two calls: it has to end it",
        guide=GUIDE,
    )
