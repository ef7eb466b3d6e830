"""Mistakes with the process group, recognised by the exception that ended the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.text import full_stop, ranks_text, verb

GUIDE = "Launching ranks"
VARIABLE = re.compile(r"environment variable (\w+) expected")
NO_GROUP = re.compile(r"process group (cannot be None|has not been initialized)", re.IGNORECASE)
ALONE = re.compile(r"clients joined|client socket has timed out", re.IGNORECASE)
NEVER_MET = (
    "The ranks can't find each other if one uses a different address or port, or expects more "
    "ranks than exist. Use the values in `info` exactly as given."
)
MEETING = "init_process_group"  # its name in a rank's events
TAKEN = re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)


def string_for_a_number(given: str, answer: Sequence[Any] | None) -> Diagnosis | None:
    """Judge the fields of a RankInfo, if there is one: all but the master's address are ints."""
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
        f"With {given}, read_rank_info returns the {name} {value!r} as a str. It must be an int. "
        "The values of environment variables are always strings, so convert them."
    )
    return Diagnosis("wrong-signature", (), text, guide=GUIDE)


def variable_not_set(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise code that reads a variable that this launcher does not set."""
    found = VARIABLE.search(_detail(seen))
    if found is None:
        return None
    text = (
        f"setup_distributed needs the environment variable {found[1]}, which not every launcher "
        "sets. Use the values in `info` instead."
    )
    return _found("launcher-not-read", seen, text)


def none_started(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a return of setup_distributed without a default process group."""
    failure = seen.failure
    if failure is None or failure.diagnosis.where or not NO_GROUP.search(_detail(seen)):
        return None
    ranks = failure.diagnosis.ranks
    text = (
        f"setup_distributed returned on {ranks_text(ranks)} of {seen.world_size} without starting "
        "the default process group. All later code needs it, even on a single rank."
    )
    return Diagnosis("group-not-initialised", ranks, text, guide=GUIDE)


def address_taken(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a port that another process uses, or on which several ranks try to listen."""
    if not TAKEN.search(_detail(seen)):
        return None
    text = (
        "setup_distributed could not listen on its port because the port is in use. Either it is "
        "not the port in `info`, or another rank acts as rank 0 too: pass the `rank` in `info`."
    )
    return _found("wrong-master", seen, text)


def another_rank_passed(passed: Callable[[], Sequence[int | None]]) -> Rule:
    """Return the rule for a port in use because several ranks start the group as one rank.

    `passed` returns, by rank, the `rank` that it passes to the process group, if it is known.
    """

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        if not TAKEN.search(_detail(seen)):
            return None
        given = dict(enumerate(passed()))
        wrong = tuple(rank for rank, its in given.items() if its not in (None, rank))
        if not wrong:
            return None
        text = (
            f"setup_distributed starts the group with rank={given[wrong[0]]} on "
            f"{ranks_text(wrong)}, so several ranks try to listen on the port of the master. Pass "
            "the `rank` in `info`."
        )
        return Diagnosis("launcher-not-read", wrong, text, _where(seen), GUIDE)

    return rule


def never_connected(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise ranks that wait for each other until the time limit or their own timeout."""
    failure = seen.failure
    if failure is None or seen.answered:
        return None
    if ALONE.search(_detail(seen)):
        text = f"setup_distributed waited for ranks that never connected. {NEVER_MET}"
        return _found("wrong-master", seen, text)
    if failure.status != "timeout":
        return None
    if any(e.kind == "exit" or (e.collective and e.collective.op != MEETING) for e in seen.events):
        return None
    known = failure.diagnosis
    at = f" It is still at {known.where}." if known.where else ""
    who = "on a single rank" if seen.world_size == 1 else f"on any of {seen.world_size} ranks"
    text = f"setup_distributed does not return {who}.{at} {NEVER_MET}"
    return Diagnosis("wrong-master", tuple(range(seen.world_size)), text, known.where, GUIDE)


def left_waiting(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise ranks that wait in setup_distributed for ranks that have returned from it."""
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
        f"{ranks_text(alone).capitalize()} {verb(alone, 'waits', 'wait')} in setup_distributed{at}"
        f", but {ranks_text(gone)} already returned from it. Every rank must call each barrier and "
        "each other collective in setup_distributed."
    )
    return Diagnosis("deadlock-rank-missing", tuple(gone), text, where, GUIDE)


def wrong_address(addresses: Sequence[Sequence[str]], wanted: str) -> Diagnosis | None:
    """Judge the addresses to which each rank connected at the master's port."""
    wrong = [rank for rank, found in enumerate(addresses) if set(found) - {wanted}]
    if not wrong:
        return None
    text = (
        f"According to `info`, the ranks meet at {wanted}, but {ranks_text(wrong)} connected to "
        f"{addresses[wrong[0]][0]}. On several machines the ranks would never find each other. "
        "Use the address in `info`."
    )
    return Diagnosis("wrong-master", tuple(wrong), text, guide=GUIDE)


def without_a_group(text: str, guide: str) -> Rule:
    """Return the rule for a run that used a process group that did not exist."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        if not NO_GROUP.search(_detail(seen)):
            return None
        who = ranks_text(seen.failure.diagnosis.ranks).capitalize() if seen.failure else ""
        return _found("group-not-initialised", seen, text, guide, who)

    return rule


def _where(seen: Observation) -> str | None:
    return seen.failure.diagnosis.where if seen.failure else None


def _detail(seen: Observation) -> str:
    return (seen.failure.detail or "") if seen.failure else ""


def _found(
    code: str, seen: Observation, text: str, guide: str = GUIDE, who: str = "setup_distributed"
) -> Diagnosis | None:
    if seen.failure is None:
        return None
    known = seen.failure.diagnosis
    at = f" at {known.where}" if known.where else ""
    said = f"{who} raised {seen.failure.exception}{at}. {full_stop(text)}"
    return Diagnosis(code, known.ranks, said, known.where, guide)
