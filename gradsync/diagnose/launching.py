"""Mistakes with the process group itself, known by the exception that they end in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Launching ranks"
VARIABLE = re.compile(r"environment variable (\w+) expected")
NO_GROUP = re.compile(r"process group (cannot be None|has not been initialized)", re.IGNORECASE)
ALONE = re.compile(r"clients joined|client socket has timed out", re.IGNORECASE)
NEVER_MET = (
    "Ranks never find each other where one looks at another address or port, or counts on more "
    "ranks than there are: all that `info` says holds, as it says it"
)
MEETING = "init_process_group"  # as a rank's events call it
TAKEN = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)


def text_for_a_number(given: str, answer: Sequence[Any] | None) -> Diagnosis | None:
    """Judge the fields of a RankInfo, if there is one; all but the master's address are numbers."""
    names = ("rank", "world_size", "local_rank", "master_addr", "master_port")
    texts = {
        name: value
        for name, value in zip(names, answer or (), strict=False)
        if isinstance(value, str) and name != "master_addr"
    }
    if not texts:
        return None
    name, value = next(iter(texts.items()))
    text = (
        f"with {given} read_rank_info gives the {name} {value!r}, a text: an int is wanted. "
        "Environment variables are texts, always"
    )
    return Diagnosis("wrong-signature", (), text, guide=GUIDE)


def variable_not_set(seen: Observation, _expected: Any) -> Diagnosis | None:
    """It looked for a launcher's variable that this launcher does not set."""
    found = VARIABLE.search(_detail(seen))
    if found is None:
        return None
    text = (
        f"setup_distributed counts on the environment variable {found[1]}, which not every "
        "launcher sets: all that is needed is in `info`"
    )
    return _found("launcher-not-read", seen, text)


def none_started(seen: Observation, _expected: Any) -> Diagnosis | None:
    """It returned, and the first who used the default group found none."""
    failure = seen.failure
    if failure is None or failure.diagnosis.where or not NO_GROUP.search(_detail(seen)):
        return None
    ranks = failure.diagnosis.ranks
    text = (
        f"setup_distributed returned on {ranks_text(ranks)} of {seen.world_size} and had started "
        "no default process group: all that comes after counts on one, of a single rank, too"
    )
    return Diagnosis("group-not-initialised", ranks, text, guide=GUIDE)


def address_taken(seen: Observation, _expected: Any) -> Diagnosis | None:
    """It wanted a port that somebody has, or several ranks wanted the same."""
    if not TAKEN.search(_detail(seen)):
        return None
    text = (
        "setup_distributed could not open its port, since it is taken. Either that is not the "
        "port in `info`, or more than one rank takes itself for rank 0"
    )
    return _found("wrong-master", seen, text)


def never_met(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Ranks still waited when the time was up, or their timeout, and none had come any further."""
    failure = seen.failure
    if failure is None or seen.answered:
        return None
    if ALONE.search(_detail(seen)):
        return _found("wrong-master", seen, f"setup_distributed waited in vain. {NEVER_MET}")
    if failure.status != "timeout":
        return None
    if any(e.kind == "exit" or (e.collective and e.collective.op != MEETING) for e in seen.events):
        return None
    known = failure.diagnosis
    at = f": it is at {known.where}" if known.where else ""
    who = "on a single rank" if seen.world_size == 1 else f"on any of {seen.world_size} ranks"
    text = f"setup_distributed does not return {who}{at}. {NEVER_MET}"
    return Diagnosis("wrong-master", tuple(range(seen.world_size)), text, known.where, GUIDE)


def left_alone(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Some ranks are still in setup_distributed, for others that have returned from it."""
    failure = seen.failure
    if failure is None or failure.status not in ("deadlock", "timeout"):
        return None
    last = {e.rank: e.collective for e in seen.events if e.collective is not None}
    elsewhere = {rank for rank, collective in last.items() if collective.where is None}
    gone = sorted(elsewhere | set(seen.answered))
    alone = sorted(set(range(seen.world_size)) - set(gone))
    if not gone or not alone:
        return None
    places = [last[rank].where for rank in alone if rank in last]
    where = failure.diagnosis.where or next(iter(places), None)
    at = f", at {where}" if where else ""
    text = (
        f"{ranks_text(alone)} {'wait' if len(alone) > 1 else 'waits'} in setup_distributed{at}, "
        f"and {ranks_text(gone)} returned from it and will not come there: what waits for all "
        "ranks has to be called on every rank"
    )
    return Diagnosis("deadlock-rank-missing", tuple(gone), text, where, GUIDE)


def met_elsewhere(addresses: Sequence[Sequence[str]], wanted: str) -> Diagnosis | None:
    """Judge the addresses that each rank connected to at the master's port."""
    wrong = [rank for rank, found in enumerate(addresses) if set(found) - {wanted}]
    if not wrong:
        return None
    text = (
        f"`info` says that the ranks meet at {wanted}, and {ranks_text(wrong)} looked for the "
        f"others at {addresses[wrong[0]][0]}: on several machines they would never find each other"
    )
    return Diagnosis("wrong-master", tuple(wrong), text, guide=GUIDE)


def without_a_group(text: str, guide: str) -> Rule:
    """Return the rule for a run without a process group: it asked for one, or ended it."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        if not NO_GROUP.search(_detail(seen)):
            return None
        return _found("group-not-initialised", seen, text, guide)

    return rule


def _detail(seen: Observation) -> str:
    return (seen.failure.detail or "") if seen.failure else ""


def _found(code: str, seen: Observation, text: str, guide: str = GUIDE) -> Diagnosis | None:
    if seen.failure is None:
        return None
    known = seen.failure.diagnosis
    at = f", at {known.where}" if known.where else ""
    said = f"{text} ({seen.failure.exception}{at})"
    return Diagnosis(code, known.ranks, said, known.where, guide)
