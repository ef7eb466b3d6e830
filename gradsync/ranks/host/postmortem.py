"""Trusted: find out which failure a run ended with, and why a rank's process ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gradsync.ranks.deadlocks import explanations
from gradsync.ranks.deadlocks.detector import DeadlockDetector
from gradsync.ranks.failures import endings, exceptions
from gradsync.ranks.host import stacks
from gradsync.ranks.host.launchers.launcher import LauncherError, RankProcesses
from gradsync.ranks.host.rank_state import RankState
from gradsync.records import Failure

EXIT_SECONDS = 1.0  # to wait for the exit code after a rank has closed its socket


def first_failure(
    states: Sequence[RankState],
    processes: RankProcesses,
    detector: DeadlockDetector,
    shows: Callable[[str], bool],
) -> Failure:
    """Return the failure of the rank that failed first, not of ranks that failed because of it."""
    if excess := processes.excess():
        return explain_excess(states, excess, shows)
    for state in states:
        if state.broken is not None:
            return state.broken
    conflicts = detector.conflicts()
    conflicting = {rank for operation in conflicts for rank in operation.calls}
    for state in states:
        if state.failed and state.raised is None and state.rank not in conflicting:
            return explain_end(state, processes, shows)
    errors = {m.rank: m.raised for m in states if m.raised is not None}
    culprits = {
        rank: error
        for rank, error in errors.items()
        if not error.in_collective and rank not in conflicting
    }
    if conflicts and not culprits:
        return explanations.mismatch(conflicts[0])
    return exceptions.first_of(culprits or errors)


def explain_end(
    state: RankState, processes: RankProcesses, shows: Callable[[str], bool]
) -> Failure:
    """Return the failure of a rank whose process ended, or stopped responding, without an answer.

    Raises:
        LauncherError: it ended before it received its task.
    """
    until = time.monotonic() + EXIT_SECONDS
    while state.exit_code is None and time.monotonic() < until:
        state.exit_code = processes.exit_codes().get(state.rank)
        time.sleep(0.002)
    if not state.ready:
        raise LauncherError(
            f"rank {state.rank} ended before its task began (exit status {state.exit_code}): "
            f"{state.read_last_output().strip()[-2000:] or 'it printed nothing'}"
        )
    written = state.read_last_stacks()
    where, endless = stacks.user_line(written, shows), stacks.endless_call(written, shows)
    return endings.left(state.rank, state.exit_code, where, endless)


def explain_excess(
    states: Sequence[RankState], excess: tuple[str, str], shows: Callable[[str], bool]
) -> Failure:
    """Return the failure of ranks that exceeded a limit; look for an endless recursion."""
    code, text = excess
    for state in states:
        written = state.read_last_stacks()
        if code == "out-of-memory" and (name := stacks.endless_call(written, shows)):
            where = stacks.user_line(written, shows)
            return endings.endless_call(state.rank, name, text, where)
    return endings.took_too_much(range(len(states)), code, text)
