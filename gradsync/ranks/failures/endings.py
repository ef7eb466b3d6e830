"""Trusted, pure: describe how ranks that returned no value ended, each as a `Failure`."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from gradsync.ranks.deadlocks.calls import Call
from gradsync.ranks.deadlocks.explanations import waits_texts
from gradsync.ranks.failures.exceptions import endless_text
from gradsync.records import Collective, Diagnosis, Failure
from gradsync.text import full_stop, listed, ranks_text

MAX_OPEN = 20_000  # collectives of a rank that are not complete
MAX_POSTED = 100_000  # sends or receives of a rank without a counterpart
IDLE = 0.5  # seconds of processor time; a rank that used less was waiting, not computing


def left(
    rank: int, exit_code: int | None, where: str | None, endless: str | None = None
) -> Failure:
    """Return the failure of a rank whose process ended, or stopped responding, without an answer.

    Args:
        rank: the rank.
        exit_code: as in `subprocess`: a negative one is the signal that killed the process.
        where: the line at which it crashed, if the rank could report it.
        endless: the function that kept calling itself when the rank crashed, if there is one.
    """
    if exit_code is None:
        text = f"Rank {rank} closed its connection to the grader and was stopped"
    elif exit_code < 0:
        text = f"Rank {rank} was killed by {_signal_text(-exit_code)}"
    else:
        text = f"Rank {rank} exited with status {exit_code} before its function returned"
    at = f", at {where}" if where else ""
    return Failure(
        "crashed", Diagnosis("rank-crashed", (rank,), f"{text}{at}.{endless_text(endless)}", where)
    )


def took_too_much(ranks: Iterable[int], code: str, text: str) -> Failure:
    """Return the failure of ranks that were stopped because they exceeded a common limit."""
    return Failure("crashed", Diagnosis(code, tuple(ranks), f"The ranks {text} and were stopped."))


def endless_call(rank: int, name: str, excess: str, where: str | None) -> Failure:
    """Return the failure of a rank that used up the memory because a function calls itself."""
    at = f" Rank {rank} was at {where}." if where else ""
    text = f"The ranks {excess} and were stopped.{at}{endless_text(name)}"
    return Failure("crashed", Diagnosis("rank-crashed", (rank,), text, where))


def timeout(
    limit: str,
    busy: dict[int, str | None],
    waiting: Iterable[Call],
    lost: Collection[int] = (),
    used: Mapping[int, float] | None = None,
    joining: Mapping[int, str] | None = None,
) -> Failure:
    """Return the failure of ranks that were still running when the time limit was reached.

    Args:
        limit: the time limit: "20 s".
        busy: the line that each running rank is at, or None if unknown; the other ranks wait.
        waiting: the calls in which the other ranks wait.
        lost: ranks that died.
        used: seconds of processor time by rank, as far as known.
        joining: the threads that ranks wait for, whose functions have returned.
    """
    waiting = list(waiting)
    texts = [f"The ranks did not finish within {limit}."]
    if lost:
        texts.append(f"{ranks_text(lost).capitalize()} died.")
    texts += busy_texts(busy, waiting)
    if joining:
        threads = listed(sorted(set(joining.values())))
        texts.append(
            f"{ranks_text(joining).capitalize()} returned, but the thread {threads} does not end. "
            "Python waits for it before a process ends: stop it, or make it a daemon."
        )
    elif used and all(used.get(rank, IDLE) < IDLE for rank in busy):
        texts.append(
            f"{ranks_text(busy).capitalize()} used almost no processor time. "
            "Look for a sleep, or for a call that waits."
        )
    elif not waiting:
        texts.append("Look for a loop that never ends.")
    where = next((busy[rank] for rank in sorted(busy) if busy[rank]), None)
    return Failure("timeout", Diagnosis("too-slow", tuple(sorted(busy)), " ".join(texts), where))


def busy_texts(busy: dict[int, str | None], waiting: Iterable[Call]) -> list[str]:
    """Return a sentence for each running rank, and sentences about the other ranks' waits."""
    texts = [
        f"Rank {rank} is at {where}." if where else f"Rank {rank} is still running."
        for rank, where in sorted(busy.items())
    ]
    return [*texts, *waits_texts(waiting)]


def too_many(started: int, posted: int) -> bool:
    """Return whether a rank has too many incomplete calls to store; usual programs have few."""
    return started > MAX_OPEN or posted > MAX_POSTED


def endless_calls(rank: int, started: int, posted: int, last: Collective) -> Failure:
    """Return the failure of a rank that starts one call after another and completes none.

    Args:
        rank: the rank.
        started: the number of its collectives that are not complete.
        posted: the number of its sends and receives without a counterpart.
        last: its last call.
    """
    what = f"{started:,} collectives" if started > MAX_OPEN else f"{posted:,} messages"
    at = f", at {last.where}" if last.where else ""
    text = (
        f"Rank {rank} has started {what}, and none of them is complete. The last one is "
        f"{last.op}{at}. Is it called in an endless loop?"
    )
    return Failure("timeout", Diagnosis("too-slow", (rank,), text, last.where))


def late(deadlock: Failure, timeout: Failure) -> Failure:
    """Return a deadlock that was found only when the time limit was reached."""
    text = f"{deadlock.diagnosis.explanation} {timeout.diagnosis.explanation}"
    return replace(deadlock, diagnosis=replace(deadlock.diagnosis, explanation=text))


def protocol(rank: int, problem: str) -> Failure:
    """Return the failure of a rank that sent data which an unmodified rank never sends."""
    text = full_stop(f"Rank {rank} was stopped because {problem}")
    return Failure("crashed", Diagnosis("tampering", (rank,), text))


def _signal_text(number: int) -> str:
    hints = {
        signal.SIGSEGV: " (a segmentation fault)",
        signal.SIGABRT: " (it called abort)",
        signal.SIGKILL: " (sent by another process, or because memory ran out)",
    }
    try:
        return signal.Signals(number).name + hints.get(signal.Signals(number), "")
    except ValueError:
        return f"signal {number}"
