"""Guess the tags of unknown values from names and environment variables."""

from __future__ import annotations

import re

from gradsync.review.flow.values import GLOBAL, LOCAL, MAYBE_RANK, RANK, WORLD, Value

_RANK = re.compile(r"(^|_|local)rank(_id)?$|^(proc|process)_(id|idx|index)$")
_OF_OTHERS = re.compile(  # ranks of other processes, and ranks of matrices
    r"(^|_)(target|dst|dest|destination|src|source|param|peer|next|prev|previous|owner|root|other|"
    r"send|recv|left|right|partner|neighbou?r|lora|low|full|matrix|max|min|mean|num|expected)_rank"
)
_FIRST = re.compile(
    r"^_?(is|am|on)_(local_|global_|world_)?(main|master|root|chief|primary|rank_?(0|zero)|first)"
    r"(_|$)|(^|_)(main|master|root|primary)_(process|proc|rank)$|(^|_)rank_?(0|zero)(_only)?$"
    r"|process_zero$"
)
_DEVICE = re.compile(r"^(local_)?(gpu|device)_(id|idx|index|rank)$")  # often the local rank
_WORLD = re.compile(r"(^|_)world_?size$|^(is_)?distributed$|^(use_)?(ddp|fsdp)$|^n(um)?_replicas$")
ENVIRONMENT = {
    "RANK": (RANK, GLOBAL),
    "SLURM_PROCID": (RANK, GLOBAL),
    "OMPI_COMM_WORLD_RANK": (RANK, GLOBAL),
    "PMI_RANK": (RANK, GLOBAL),
    "LOCAL_RANK": (RANK, LOCAL),
    "SLURM_LOCALID": (RANK, LOCAL),
    "OMPI_COMM_WORLD_LOCAL_RANK": (RANK, LOCAL),
    "GROUP_RANK": (RANK,),
    "SLURM_NODEID": (RANK,),
    "WORLD_SIZE": (WORLD,),
    "LOCAL_WORLD_SIZE": (WORLD,),
    "SLURM_NTASKS": (WORLD,),
    "SLURM_NPROCS": (WORLD,),
    "OMPI_COMM_WORLD_SIZE": (WORLD,),
}


def by_name(name: str) -> Value:
    """Return an unknown value, with tags that are guessed from its name."""
    name = name.lower()
    if _FIRST.search(name):
        return Value(tags=frozenset({RANK}))
    if _RANK.search(name) and not _OF_OTHERS.search(name):
        return Value(tags=frozenset({RANK, LOCAL} if "local" in name else {RANK}))
    if _DEVICE.search(name):
        return Value(tags=frozenset({MAYBE_RANK}))
    if _WORLD.search(name):
        return Value(tags=frozenset({WORLD}))
    return Value()


def of_environment(name: object) -> Value:
    """Return the value of an environment variable that launchers set."""
    tags = ENVIRONMENT.get(str(name))
    return by_name(str(name)) if tags is None else Value(tags=frozenset(tags))
