"""Write a run's collectives in the format of torch's flight recorder, for torch's own analyser.

`torchfrtrace FOLDER` reads the dumps, matches the ranks' calls and names the missing ones. Without
this, only nccl's process groups write such dumps. `torch/distributed/flight_recorder` in torch
defines the format (version 2.10); its `builder.py` lists the fields.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradsync.ranks.deadlocks.calls import SETUP
from gradsync.records import Collective, Event, Observation

VERSION = "2.10"
PREFIX = "rank_"  # of the files' names; the analyser detects it
DESCRIPTION = "undefined"  # torch's value for a group without a description
MESSAGES = ("send", "recv")
NAMES = {  # a name in torch.distributed -> the flight recorder's name, if it is different
    "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "monitored_barrier": "barrier",
}


def write_flight_records(observation: Observation, folder: Path | str) -> list[Path]:
    """Write a dump for each rank into a folder, which is created; return the files' paths.

    A failed run's observation is `failure.observation` of its `RankFailure`.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    groups = _groups(observation)
    paths = [folder / f"{PREFIX}{rank}" for rank in range(observation.world_size)]
    for rank, path in enumerate(paths):
        events = [event for event in observation.events if event.rank == rank]
        dump = {
            "version": VERSION,
            "pg_config": {
                name: {"name": name, "desc": DESCRIPTION, "ranks": str(list(members))}
                for name, members in groups.items()
                if rank in members
            },
            "pg_status": {},
            "entries": list(_entries(events, observation.world_size)),
        }
        path.write_bytes(pickle.dumps(dump))
    return paths


def _groups(observation: Observation) -> dict[str, tuple[int, ...]]:
    """Return the members of each process group that a rank used.

    The messages from one rank to another count as a group of these two, because the analyser would
    expect every rank of their real group to take part.
    """
    everyone = tuple(range(observation.world_size))
    groups = {}
    for event in observation.events:
        if event.collective is not None and event.collective.op not in SETUP:
            name, members = _group(event.collective, event.rank)
            groups[name] = members or everyone
    return groups


def _group(call: Collective, rank: int) -> tuple[str, tuple[int, ...]]:
    """Return the group to which a call belongs in the dump, and its members."""
    if call.op not in MESSAGES or call.peer is None:
        return call.group, call.members
    source, target = (rank, call.peer) if call.op == "send" else (call.peer, rank)
    return f"{call.group} {source}->{target}", tuple(sorted((source, target)))


def _entries(events: list[Event], world_size: int) -> Iterator[dict[str, Any]]:
    """Yield an entry for each collective of a rank, in the order of its calls."""
    ended = {event.call: event.seconds for event in events if event.kind == "exit"}
    begun = {event.call for event in events if event.kind == "wait"}
    numbers: Counter[str] = Counter()  # of each group's calls
    for event in events:
        call = event.collective
        if call is None or call.op in SETUP:
            continue
        group, members = _group(call, event.rank)
        numbers[group] += 1
        end = ended.get(event.call)
        yield {
            "record_id": event.call,
            "pg_id": 0,
            "process_group": (group, DESCRIPTION),
            "collective_seq_id": numbers[group],
            "p2p_seq_id": numbers[group] if call.op in MESSAGES else 0,
            "op_id": event.call,
            "profiling_name": f"gloo:{_name(call, event.rank, members)}",
            "time_created_ns": _nanoseconds(event.seconds),
            "duration_ms": None if end is None else (end - event.seconds) * 1000,
            **_tensors(call, len(members) or world_size),
            "state": "started" if end is None and event.call in begun else _state(end),
            "time_discovered_started_ns": _nanoseconds(event.seconds),
            "time_discovered_completed_ns": _nanoseconds(end),
            "retired": end is not None,
            "timeout_ms": 0,
            "is_p2p": call.op in MESSAGES,
            "frames": _frames(call),
        }


def _name(call: Collective, rank: int, members: tuple[int, ...]) -> str:
    """Return the flight recorder's name of a call; ranks in it are positions in the group."""
    if call.op not in MESSAGES:
        return NAMES.get(call.op, call.op)
    if call.peer is None:
        return "recv 0<-0"  # from any rank, which the format can't express
    own, peer = members.index(rank), members.index(call.peer)
    return f"send {own}->{peer}" if call.op == "send" else f"recv {own}<-{peer}"


def _tensors(call: Collective, size: int) -> dict[str, Any]:
    """Return sizes and dtypes; a list of tensors counts as one concatenated tensor.

    Events have only the inputs, or the outputs of a reduce-scatter. The other sizes are computed.
    """
    inputs = [list(shape) for shape in call.shapes] or [[]]
    if len(inputs) > 1 and all(inputs) and not call.op.endswith("_coalesced"):
        inputs = [[sum(shape[0] for shape in inputs), *inputs[0][1:]]]
    outputs = inputs
    if call.op.startswith(("all_gather", "reduce_scatter")):
        whole = [[shape[0] * size, *shape[1:]] if shape else [size] for shape in inputs]
        inputs, outputs = (inputs, whole) if call.op.startswith("all") else (whole, inputs)
    elif call.op in ("scatter", "gather"):
        outputs = [[]]
    dtype = (call.dtype or "").capitalize()
    return {
        "input_sizes": inputs,
        "input_dtypes": [dtype] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": [dtype] * len(outputs),
    }


def _state(end: float | None) -> str:
    return "scheduled" if end is None else "completed"


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _frames(call: Collective) -> list[dict[str, str]]:
    """Return the line of the user's code that made the call."""
    if call.where is None:
        return []
    file, _, line = call.where.rpartition(":")
    return [{"name": (call.callers or ("",))[-1], "filename": file, "line": line}]
