"""Trusted, pure: what ranks that did not answer were at, as a `Failure`."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from gradsync.ranks.exceptions import endless_text
from gradsync.ranks.standoff import Call
from gradsync.ranks.wording import ranks_text, waits_texts
from gradsync.records import Collective, Diagnosis, Failure

MAX_OPEN = 20_000  # collectives that a rank has entered and not yet left
MAX_POSTED = 100_000  # messages of a rank that nobody has taken, or sent
IDLE = 0.5  # seconds of processor time, in many of waiting, that are as good as none


def left(
    rank: int, exit_code: int | None, where: str | None, endless: str | None = None
) -> Failure:
    """Return the failure of a rank whose process ended, or fell silent, without an answer.

    Args:
        rank: the rank.
        exit_code: as `subprocess` has it: negative is the signal that killed it.
        where: the line that it crashed at, if it could still tell.
        endless: the function that called itself again and again as it crashed, if one did.
    """
    if exit_code is None:
        text = f"rank {rank} closed its connection to the grader and was stopped"
    elif exit_code < 0:
        text = f"rank {rank} was killed by {_signal_text(-exit_code)}{endless_text(endless)}"
    else:
        text = f"rank {rank} left with exit status {exit_code} before its function returned"
    at = f" at {where}" if where else ""
    return Failure("crashed", Diagnosis("rank-crashed", (rank,), text + at, where))


def took_too_much(ranks: Iterable[int], code: str, text: str) -> Failure:
    """Return the failure of ranks that were ended because of what they took together."""
    told = f"the ranks {text} and were ended"
    return Failure("crashed", Diagnosis(code, tuple(ranks), told))


def endless_call(rank: int, name: str, excess: str, where: str | None) -> Failure:
    """Return the failure of a rank whose calls of a function within itself took all memory."""
    at = f" at {where}" if where else ""
    told = f"the ranks {excess} and were ended: rank {rank}{endless_text(name)}{at}"
    return Failure("crashed", Diagnosis("rank-crashed", (rank,), told, where))


def timeout(
    limit: str,
    busy: dict[int, str | None],
    waiting: Iterable[Call],
    lost: Collection[int] = (),
    used: Mapping[int, float] | None = None,
) -> Failure:
    """Return the failure of ranks that were still at it when the time was up.

    Args:
        limit: what was up: "20 s".
        busy: the line that each rank is at, where it is known; the others wait for them.
        waiting: in what these wait.
        lost: ranks that died.
        used: seconds of processor time, by rank, as far as they are known.
    """
    waiting = list(waiting)
    gone = [f"{ranks_text(lost)} died"] if lost else []
    text = f"not done after {limit}: {'; '.join([*gone, *busy_texts(busy, waiting)])}"
    if used and all(used.get(rank, IDLE) < IDLE for rank in busy):
        text += ". No processor time was used: it may be a sleep or a call that waits"
    elif not waiting:
        text += ". Is that a loop without an end?"
    where = next((busy[rank] for rank in sorted(busy) if busy[rank]), None)
    return Failure("timeout", Diagnosis("too-slow", tuple(sorted(busy)), text, where))


def busy_texts(busy: dict[int, str | None], waiting: Iterable[Call]) -> list[str]:
    """Return what ranks are at: the line that each busy one is at, and what the others wait in."""
    told = [
        f"rank {rank} " + (f"is at {where}" if where else "is still running")
        for rank, where in sorted(busy.items())
    ]
    return [*told, *waits_texts(waiting)]


def too_many(started: int, posted: int) -> bool:
    """Tell whether a rank has more calls under way than can be kept, or than any program needs."""
    return started > MAX_OPEN or posted > MAX_POSTED


def endless_calls(rank: int, started: int, posted: int, last: Collective) -> Failure:
    """Return the failure of a rank that starts one call after the other and completes none.

    Args:
        rank: the rank.
        started: how many collectives it has under way.
        posted: how many messages, that no rank has taken or sent.
        last: its last call.
    """
    what = f"{started:,} collectives" if started > MAX_OPEN else f"{posted:,} messages"
    at = f" at {last.where}" if last.where else ""
    text = (
        f"rank {rank} has started {what} and none of them is complete; the last one is "
        f"{last.op}{at}. Is that in a loop without an end?"
    )
    return Failure("timeout", Diagnosis("too-slow", (rank,), text, last.where))


def late(deadlock: Failure, timeout: Failure) -> Failure:
    """Return a deadlock that showed only when the time was up."""
    text = f"{deadlock.diagnosis.explanation} ({timeout.diagnosis.explanation})"
    return replace(deadlock, diagnosis=replace(deadlock.diagnosis, explanation=text))


def protocol(rank: int, problem: str) -> Failure:
    """Return the failure of a rank that sent what no honest rank sends."""
    return Failure("crashed", Diagnosis("tampering", (rank,), f"rank {rank}: {problem}"))


def _signal_text(number: int) -> str:
    hints = {
        signal.SIGSEGV: " (a segmentation fault)",
        signal.SIGABRT: " (it aborted itself)",
        signal.SIGKILL: " (killed from outside, or out of memory)",
    }
    try:
        return signal.Signals(number).name + hints.get(signal.Signals(number), "")
    except ValueError:
        return f"signal {number}"
