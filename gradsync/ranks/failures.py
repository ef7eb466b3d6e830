"""Trusted, pure: what a rank that did not answer tells of itself, as a `Failure`."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from gradsync.ranks import events
from gradsync.ranks.standoff import Call
from gradsync.ranks.wording import ranks_text, waits_texts
from gradsync.records import Diagnosis, Failure, Status

MAX_MESSAGE = 2_000  # characters of an exception's text that a report shows
ARGUMENTS = re.compile(r"positional argument|keyword argument|takes no arguments|multiple values")
EXERCISE = re.compile(r"phase\d/\w+")
UNUSABLE = ("TypeError", "AttributeError", "KeyError", "IndexError", "ValueError")  # as for None
UNUSABLE_HINTS = {  # by what the error says of what came back
    "NoneType": ": does every path end with a return?",
    "non-iterator": ": `__iter__` returns an iterator, which a list is not, or yields",
}
DEBUGGER = ", as where breakpoint() was left: a debugger asks how to go on, and nobody is there,"
NO_GROUP = "process group has not been initialized"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as a rank described it, every field checked."""

    type: str
    message: str
    code: str | None
    missing: str | None
    frames: tuple[tuple[str, str, str], ...]  # place, function, source line; innermost last
    in_collective: bool
    out_of_memory: bool

    @classmethod
    def read(cls, header: dict[str, Any]) -> Raised:
        """Read a rank's `raised` frame, believing nothing of it."""
        frames = header.get("frames")
        rows = frames if isinstance(frames, list) else []
        return cls(
            type=_text(header.get("type"), "exception"),
            message=_text(header.get("message")),
            code=_code(header.get("code")),
            missing=None if header.get("missing") is None else _text(header["missing"]),
            frames=tuple(
                (_text(row[0]), _text(row[1]), _text(row[2]).strip())
                for row in rows[-20:]
                if isinstance(row, list) and len(row) == 3
            ),
            in_collective=header.get("in_collective") is True,
            out_of_memory=header.get("out_of_memory") is True,
        )

    @property
    def where(self) -> str | None:
        return self.frames[-1][0] if self.frames else None

    @property
    def traceback(self) -> str:
        return "\n".join(
            f"{place} in {name}" + (f": {source}" if source else "")
            for place, name, source in self.frames
        )

    @property
    def loading(self) -> bool:
        """Tell whether it came up before any function of the user's was called."""
        return self.type in ("SyntaxError", "IndentationError", "TabError") or (
            bool(self.frames) and self.frames[-1][1] == "<module>"
        )

    def alike(self, other: Raised) -> bool:
        return (self.type, self.where, self.missing) == (other.type, other.where, other.missing)


def raised(error: Raised, ranks: tuple[int, ...]) -> Failure:
    """Return the failure of ranks that raised this exception."""
    status, code, text, where = _classify(error, ranks)
    at = f" at {where}" if where and code not in ("unfinished", "wrong-signature") else ""
    unloadable = error.loading and code in ("exception", "rank-crashed")
    return Failure(
        status=status,
        diagnosis=Diagnosis(code, ranks, text + at, where, whole_file=unloadable),
        exception=error.type,
        detail=error.message,
        traceback=error.traceback,
    )


def _classify(error: Raised, ranks: tuple[int, ...]) -> tuple[Status, str, str, str | None]:
    who = ranks_text(ranks)
    said = f"{error.type}: {error.message}" if error.message else error.type
    if error.type == "NotImplementedError" and EXERCISE.fullmatch(error.message):
        return "unfinished", "unfinished", f"{error.message} is not written yet", error.where
    if error.type == "ForbiddenShortcut":  # of gradsync.probes.ready_made
        return "failed", "forbidden-shortcut", f"{error.message}. It is called", error.where
    if error.missing and not error.frames:
        return "missing", "missing-name", f"the file does not define {error.missing}", None
    if error.type == "TypeError" and not error.frames and ARGUMENTS.search(error.message):
        text = f"{error.message}: was a parameter of it renamed, added or removed?"
        return "error", "wrong-signature", text, None
    if error.type in ("SystemExit", "KeyboardInterrupt"):
        moment = " while the file was loaded" if error.loading else ""
        text = f"{who} ended itself with {error.type}({error.code}){moment}"
        return "crashed", "rank-crashed", text, error.where
    if error.out_of_memory or "DefaultCPUAllocator: can't allocate memory" in error.message:
        return "crashed", "out-of-memory", f"{who} ran out of memory ({said})", error.where
    if NO_GROUP in error.message:
        text = (
            f"{who} used a collective where there is no process group: it has not been started "
            f"yet, or your own code has ended it ({said})"
        )
        return "error", "group-not-initialised", text, error.where
    if error.loading:
        return "error", "exception", f"the file can't be loaded: {said}", error.where
    if not error.frames and error.type in UNUSABLE:
        hints = [hint for sign, hint in UNUSABLE_HINTS.items() if sign in error.message]
        text = f"what came back can't be used ({said}){''.join(hints[:1])}"
        return "error", "wrong-signature", text, None
    hint = DEBUGGER if error.type == "BdbQuit" else ""
    return "error", "exception", f"{who} raised {said}{hint}", error.where


def left(rank: int, exit_code: int | None, where: str | None) -> Failure:
    """Return the failure of a rank whose process ended, or fell silent, without an answer.

    `exit_code` is as `subprocess` has it: negative is the signal that killed it. `where` is the
    line that it crashed at, if it could still tell.
    """
    if exit_code is None:
        text = f"rank {rank} closed its connection to the grader and was stopped"
    elif exit_code < 0:
        text = f"rank {rank} was killed by {_signal_text(-exit_code)}"
    else:
        text = f"rank {rank} left with exit status {exit_code} before its function returned"
    at = f" at {where}" if where else ""
    return Failure("crashed", Diagnosis("rank-crashed", (rank,), text + at, where))


def took_too_much(ranks: Iterable[int], code: str, text: str) -> Failure:
    """Return the failure of ranks that were ended because of what they took together."""
    told = f"the ranks {text} and were ended"
    return Failure("crashed", Diagnosis(code, tuple(ranks), told))


def timeout(
    seconds: float,
    busy: dict[int, str | None],
    waiting: Iterable[Call],
    lost: Collection[int] = (),
) -> Failure:
    """Return the failure of ranks that were still at it when the time was up.

    `busy` has the line that each of them is at, where it is known; the others wait for them, or
    for ranks that are `lost`.
    """
    waiting = list(waiting)
    gone = [f"{ranks_text(lost)} died"] if lost else []
    text = f"not done after {seconds:g} s: {'; '.join([*gone, *busy_texts(busy, waiting)])}"
    if not waiting:
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


def _code(value: Any) -> str | None:
    if type(value) is int:
        return str(value)
    return None if value is None else _text(value)


def _text(value: Any, default: str = "") -> str:
    return events.text(value, MAX_MESSAGE) if type(value) is str else default
