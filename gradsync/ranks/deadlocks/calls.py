"""Trusted, pure: the call of a collective by one rank, and whether the ranks' calls match."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradsync.records import Collective

# The ranks' tensors may have different sizes in these. `misfit` compares the sizes of all_to_all.
UNEVEN_OPS = {"all_to_all", "all_to_all_single", "barrier", "monitored_barrier"}
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2,
    "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

# The recorded names of calls that exchange tensors. Object collectives are made of these.
EXCHANGES = {
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "gather", "scatter",
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced", "all_to_all", "all_to_all_single",
    "barrier", "monitored_barrier", "send", "recv",
}  # fmt: skip

STORE = "store.wait"
# Calls of functions that exchange no tensors; they don't count as collectives of a group.
SETUP = (
    *("init_process_group", "new_group", "split_group", "destroy_process_group"),
    *(STORE, "rpc.shutdown"),
)

Mail = tuple[str, int, int, int]  # group, sender, receiver, tag


@dataclass(eq=False, slots=True)
class Operation:
    """The calls of different ranks that belong to one collective or message."""

    position: int  # in its group, or between its sender and receiver, from 0
    calls: dict[int, Call] = field(default_factory=dict)  # by rank
    conflict: str | None = None  # what differs between the calls
    threaded: tuple[int, ...] = ()  # of a conflict: ranks with a second thread in this group
    subgroups: tuple[tuple[int, ...], ...] = ()  # of a conflict: the groups that exist


@dataclass(eq=False, slots=True)
class Call:
    """The call of a collective by one rank."""

    rank: int
    collective: Collective
    expected: frozenset[int]  # the ranks that take part
    operation: Operation
    number: int = 1  # of the call on this rank (in a notebook: in this cell); 0: an earlier cell's
    mail: Mail | None = None  # for a send or recv
    from_anyone: bool = False
    left: bool = False  # it is complete for this rank
    pending: tuple[Call, ...] = ()  # the calls that destroy_process_group waits for

    @property
    def sets_key(self) -> bool:
        """Whether it waits until any other rank sets a key of a store."""
        return self.collective.op == STORE

    @property
    def elsewhere(self) -> set[int]:
        """The ranks that have not arrived yet."""
        return set(self.expected.difference(self.operation.calls))


def disagreement(views: Sequence[Collective]) -> str | None:
    """Return what differs between the ranks' calls of one operation, or None."""
    first = views[0]
    if first.op in ("send", "recv"):
        return None if _fits(views) else "shapes"
    if any(view.op != first.op for view in views):
        return "ops"
    if any(view.root != first.root for view in views):
        return "roots"
    if first.op in UNEVEN_OPS or (first.op == "all_gather" and first.receives):
        return None
    if any((v.dtype, numel(v)) != (first.dtype, numel(first)) for v in views):
        return "shapes"
    return "reductions" if any(view.reduce != first.reduce for view in views) else None


def misfit(call: Call, others: Iterable[Call]) -> tuple[Call, Call] | None:
    """Return the first sender and receiver of an all_to_all whose sizes differ, or None."""
    pairs = (pair for other in others for pair in ((call, other), (other, call)))
    for sender, receiver in pairs:
        sent = portion(sender, receiver.rank)
        expected = portion(receiver, sender.rank, arriving=True)
        if sent is None or expected is None:
            continue
        if sent * _item_bytes(sender.collective) != expected * _item_bytes(receiver.collective):
            return sender, receiver
    return None


def groups_differ(call: Call, others: Iterable[Call]) -> bool:
    """Return whether the lists that ranks pass to new_group describe groups that can't start.

    Ranks that all pass lists with themselves alone do not wait for others.
    """
    pairs = (pair for other in others for pair in ((call, other), (other, call)))
    return any(
        mine != theirs
        and one.rank in mine
        and len(mine) > 1
        and (two.rank in mine or two.rank in theirs)
        for one, two in pairs
        for mine, theirs in [(one.collective.ranks, two.collective.ranks)]
    )


def portion(call: Call, rank: int, *, arriving: bool = False) -> int | None:
    """Return how many elements go to `rank` in an all_to_all, or arrive from it; None: unknown."""
    elements = call.collective.receives if arriving else call.collective.sends
    members = call.collective.members
    known = rank in members and len(elements) == len(members)
    return elements[members.index(rank)] if known else None


def _fits(ends: Sequence[Collective]) -> bool:
    """Return whether a message fits into its receiver's tensor; a larger one aborts that rank."""
    send = next((end for end in ends if end.op == "send"), None)
    recv = next((end for end in ends if end.op == "recv"), None)
    if send is None or recv is None:
        return True
    if send.dtype != recv.dtype:
        return bytes_of(send) == bytes_of(recv)
    return bytes_of(send) <= bytes_of(recv)


def numel(collective: Collective) -> int:
    """Return the number of elements of the tensors that a rank passes to a collective."""
    return sum(map(math.prod, collective.shapes))


def bytes_of(collective: Collective) -> int:
    """Return the size in bytes of the tensors that a rank passes to a collective."""
    return numel(collective) * _item_bytes(collective)


def _item_bytes(collective: Collective) -> int:
    return ITEM_BYTES.get(collective.dtype or "", 4)
