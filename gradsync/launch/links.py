"""Test the links between all ranks: reachability, values, latency and bandwidth of each pair."""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from gradsync.launch import network
from gradsync.launch.rank_errors import LaunchedWrongly
from gradsync.launch.settings import Settings
from gradsync.text import listed

CONNECT_SECONDS = 5.0
SMALL, LARGE = 8, 4 * 2**20  # bytes of the messages that measure latency and bandwidth
ROUNDS_SMALL, ROUNDS_LARGE = 20, 5
SECONDS_FOR_PAIRS = 200.0  # no pair is begun later: the test has five minutes in total
SLOW = 0.25  # of the median bandwidth of links of the same kind
FLOATS = 2**20  # elements of the tensor that is broadcast and all-reduced


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of ranks, with the measurements of the first rank."""

    ranks: tuple[int, int]
    between_nodes: bool
    latency: float  # seconds, one way
    bandwidth: float  # bytes per second


def test(settings: Settings) -> None:
    """Run all tests on this rank; rank 0 prints a line for each.

    Raises:
        LaunchedWrongly: ranks can't reach each other, or a collective returns wrong values.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    say: Callable[[str], None] = partial(print, flush=True) if rank == 0 else lambda _: None
    timeout = timedelta(seconds=settings.timeout)
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timeout))
    hosts = _reach_each_other(store, rank, world_size)
    say(f"reachable   ok    {world_size} ranks on {listed(dict.fromkeys(hosts))}")

    began = time.monotonic()
    use_cuda = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    )
    name = "nccl" if use_cuda else "gloo"
    dist.init_process_group(name, store=store, rank=rank, world_size=world_size, timeout=timeout)
    say(f"init        ok    {name}, {1000 * (time.monotonic() - began):.0f} ms")
    for what, seconds in _collectives(rank, world_size, device):
        say(f"{what:11} ok    {1000 * seconds:.1f} ms")
    links = list(_measured(rank, world_size, device, hosts))
    for line in _verdicts(links, hosts):
        say(line)
    dist.barrier()
    dist.destroy_process_group()


def _reach_each_other(store: Store, rank: int, world_size: int) -> list[str]:
    """Connect each pair of ranks over TCP, and return the host of each rank.

    A process group connects all pairs too, but its error does not name the two ranks.

    Raises:
        LaunchedWrongly: a rank can't connect to another one; the message names all such pairs.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    address = network.interfaces().get(interface) or network.gloo_address()[0]
    with socket.create_server((address, 0)) as server:
        own = [socket.gethostname(), address, server.getsockname()[1]]
        store.set(f"links/{rank}", json.dumps(own))
        places = [json.loads(store.get(f"links/{peer}")) for peer in range(world_size)]
        failed = [peer for peer in range(rank) if not _connects(*places[peer][1:])]
        store.set(f"links/failed/{rank}", json.dumps(failed))
        lost = [
            f"ranks {peer} and {other} ({places[peer][1]} and {places[other][1]})"
            for other in range(world_size)
            for peer in json.loads(store.get(f"links/failed/{other}"))
        ]
    if lost:
        raise LaunchedWrongly(
            f"No connection between {listed(lost)}. A firewall may block the ports above 1023, or "
            "the addresses belong to a network that does not connect the nodes: choose another "
            "interface with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME."
        )
    return [place[0] for place in places]


def _connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _collectives(rank: int, world_size: int, device: torch.device) -> Iterator[tuple[str, float]]:
    """Yield the name and the seconds of each collective, after checking its values."""
    began = time.monotonic()
    dist.barrier()
    yield "barrier", time.monotonic() - began

    values = torch.full((FLOATS,), float(rank + 1), device=device)
    began = time.monotonic()
    dist.broadcast(values, src=0)
    _expect("broadcast", values, 1.0)
    yield "broadcast", time.monotonic() - began

    values.fill_(rank + 1)
    began = time.monotonic()
    dist.all_reduce(values)
    _expect("all_reduce", values, world_size * (world_size + 1) / 2)
    yield "all_reduce", time.monotonic() - began


def _expect(what: str, values: torch.Tensor, value: float) -> None:
    if not bool((values == value).all()):
        seen = values[values != value][0].item()
        text = f"{what} returned {seen:g} instead of {value:g}: the network is broken."
        raise LaunchedWrongly(text)


def _measured(rank: int, world_size: int, device: torch.device, hosts: list[str]) -> Iterator[Link]:
    """Measure the pairs of ranks one after the other; yield the same links on every rank."""
    began = time.monotonic()
    for pair in itertools.combinations(range(world_size), 2):
        numbers = torch.zeros(3, dtype=torch.float64, device=device)
        if rank in pair:
            latency = _one_way(pair, rank, device, SMALL, ROUNDS_SMALL)
            seconds = _one_way(pair, rank, device, LARGE, ROUNDS_LARGE)
            numbers[0], numbers[1] = latency, LARGE / seconds
        numbers[2] = time.monotonic() - began
        dist.broadcast(numbers, src=pair[0])
        latency, bandwidth, elapsed = numbers.tolist()
        a, b = pair
        yield Link(pair, hosts[a] != hosts[b], latency, bandwidth)
        if elapsed > SECONDS_FOR_PAIRS:  # broadcast, so all ranks return after the same pair
            return


def _one_way(
    pair: tuple[int, int], rank: int, device: torch.device, size: int, rounds: int
) -> float:
    """Return the seconds of the fastest message, which is half of a round trip."""
    message = torch.zeros(size, dtype=torch.uint8, device=device)
    first, second = pair
    times = []
    for _ in range(rounds + 1):  # the first round opens the connection
        began = time.monotonic()
        if rank == first:
            dist.send(message, second)
            dist.recv(message, second)
        else:
            dist.recv(message, first)
            dist.send(message, first)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.monotonic() - began)
    return min(times[1:]) / 2


def _verdicts(links: list[Link], hosts: list[str]) -> Iterator[str]:
    """Yield a line for each link, with "ok" or "slow"."""
    for link in links:
        alike = [other.bandwidth for other in links if other.between_nodes == link.between_nodes]
        slow = link.bandwidth < SLOW * statistics.median(alike)
        a, b = link.ranks
        where = f"{hosts[a]} to {hosts[b]}" if link.between_nodes else f"within {hosts[a]}"
        yield (
            f"link {a}-{b}".ljust(12)
            + ("slow" if slow else "ok").ljust(6)
            + f"{link.latency * 1e6:.0f} us, {link.bandwidth / 1e6:.0f} MB/s, {where}"
        )
    left_out = len(hosts) * (len(hosts) - 1) // 2 - len(links)
    if left_out:
        yield f"{left_out} more links were not measured, because the time limit was reached"
