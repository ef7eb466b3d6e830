"""Trusted: find out which failure a run ended with, and why a rank's process ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gradsync.ranks.deadlocks import explanations
from gradsync.ranks.deadlocks.detector import Standoff
from gradsync.ranks.failures import endings, exceptions
from gradsync.ranks.host import stacks
from gradsync.ranks.host.launcher import Crew, LauncherError
from gradsync.ranks.host.rank_state import Member
from gradsync.records import Failure

EXIT_SECONDS = 1.0  # to wait for the exit code after a rank has closed its socket


def failure(
    members: Sequence[Member], crew: Crew, standoff: Standoff, shows: Callable[[str], bool]
) -> Failure:
    """Return the failure of the rank that failed first, not of those it took down."""
    if excess := crew.excess():
        return took_too_much(members, excess, shows)
    for member in members:
        if member.broken is not None:
            return member.broken
    conflicts = standoff.conflicts()
    torn = {rank for meeting in conflicts for rank in meeting.calls}
    for member in members:
        if member.failed and member.raised is None and member.rank not in torn:
            return left(member, crew, shows)
    errors = {m.rank: m.raised for m in members if m.raised is not None}
    culprits = {
        rank: error
        for rank, error in errors.items()
        if not error.in_collective and rank not in torn
    }
    if conflicts and not culprits:
        return explanations.mismatch(conflicts[0])
    return exceptions.first_of(culprits or errors)


def left(member: Member, crew: Crew, shows: Callable[[str], bool]) -> Failure:
    """Return the failure of a rank whose process ended, or stopped responding, without an answer.

    Raises:
        LauncherError: it ended before it received its task.
    """
    until = time.monotonic() + EXIT_SECONDS
    while member.exit_code is None and time.monotonic() < until:
        member.exit_code = crew.exit_codes().get(member.rank)
        time.sleep(0.002)
    if not member.ready:
        raise LauncherError(
            f"rank {member.rank} ended before its task began (exit status {member.exit_code}): "
            f"{member.hear_last_output().strip()[-2000:] or 'it printed nothing'}"
        )
    written = member.hear_last_stacks()
    where, endless = stacks.user_line(written, shows), stacks.endless_call(written, shows)
    return endings.left(member.rank, member.exit_code, where, endless)


def took_too_much(
    members: Sequence[Member], excess: tuple[str, str], shows: Callable[[str], bool]
) -> Failure:
    """Return the failure of ranks that exceeded a limit; look for an endless recursion."""
    code, text = excess
    for member in members:
        written = member.hear_last_stacks()
        if code == "out-of-memory" and (name := stacks.endless_call(written, shows)):
            where = stacks.user_line(written, shows)
            return endings.endless_call(member.rank, name, text, where)
    return endings.took_too_much(range(len(members)), code, text)
