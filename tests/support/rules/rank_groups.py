"""Mistakes in groups of ranks: their members, and in which order they are created."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.text import listed, ranks_text

GUIDE = "Groups"
CREATES = ("new_group", "split_group")


def members_of(rank: int, data: int, tensor: int) -> dict[str, list[int]]:
    """Return the members of the rank's two groups."""
    row, column = divmod(rank, tensor)
    return {
        "data": [line * tensor + column for line in range(data)],
        "tensor": [row * tensor + place for place in range(tensor)],
    }


def groups_mistake(seen: Observation, data: int, tensor: int) -> Diagnosis | None:
    """Return the diagnosis of the groups that `probe_groups` saw on each rank."""
    if found := created_differently(seen, None):
        return found
    wanted = [members_of(rank, data, tensor) for rank in range(len(seen))]
    got = [{n: sorted(value[n]["members"]) for n in ("data", "tensor")} for value in seen]
    wrong = tuple(rank for rank in range(len(seen)) if got[rank] != wanted[rank])
    if wrong:
        rank = wrong[0]
        swapped = all(
            one["data"] == w["tensor"] and one["tensor"] == w["data"]
            for one, w in zip(got, wanted, strict=True)
        )
        text = (
            f"With data={data} and tensor={tensor}, the data group of rank {rank} is "
            f"{got[rank]['data']}, and its tensor group {got[rank]['tensor']}. They must be "
            f"{wanted[rank]['data']} and {wanted[rank]['tensor']}: "
        )
        text += (
            "the two are swapped." if swapped else "a tensor group is a row, a data group a column."
        )
        return Diagnosis("wrong-group", wrong, text, guide=GUIDE)
    sums = [[sum(1.0 + m for m in w[n]) for n in ("data", "tensor")] for w in wanted]
    added = [[value[n]["sum"] for n in ("data", "tensor")] for value in seen]
    if added != sums:
        text = f"Sums over the groups are {listed(added)} by rank, not {listed(sums)}."
        return Diagnosis("wrong-group", tuple(range(len(seen))), text, guide=GUIDE)
    return None


def created_differently(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise ranks that create other groups than rank 0, or in another order."""
    created = [
        [call.ranks for call in seen.collectives(rank) if call.op in CREATES]
        for rank in range(seen.world_size)
    ]
    others = tuple(rank for rank, calls in enumerate(created) if calls != created[0])
    if not others:
        return None
    text = (
        f"Rank 0 creates the groups {_shown(created[0])}, but rank {others[0]} creates "
        f"{_shown(created[others[0]])}. new_group is a collective of all ranks, members or not: "
        "every rank must create every group, in the same order, and keep the ones it is in."
    )
    return Diagnosis("wrong-group", others, text, guide=GUIDE)


def _shown(groups: Sequence[Sequence[int]]) -> str:
    return listed([str(list(group)) for group in groups]) if groups else "none"


def accepted(seen: Sequence[Sequence[str | None]], shapes: Sequence[Any]) -> Diagnosis | None:
    """Return the diagnosis if a shape that does not fit is accepted, or raises another error."""
    for number, (data, tensor) in enumerate(shapes):
        ranks = tuple(
            rank for rank, errors in enumerate(seen)
            if not (errors[number] or "").startswith("ValueError")
        )  # fmt: skip
        if ranks:
            text = (
                f"make_groups({data}, {tensor}) on {len(seen)} ranks gives "
                f"{seen[ranks[0]][number] or 'no error'} on {ranks_text(ranks)}. It must raise a "
                "ValueError on every rank."
            )
            return Diagnosis("bad-arguments-accepted", ranks, text, guide=GUIDE)
    return None
