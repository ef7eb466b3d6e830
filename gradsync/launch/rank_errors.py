"""Explain in a few lines why a rank failed."""

from __future__ import annotations

import re
import traceback

from torch.distributed import DistError

from gradsync.launch.settings import Settings
from gradsync.records import Diagnosis
from gradsync.text import full_stop

CLOSED = re.compile(r"[Cc]onnection (was )?(closed|reset)|[Bb]roken pipe|Connection refused|EOF")
LATE = re.compile(r"[Tt]imed out|timeout|Timeout")
OTHER_MODEL = re.compile(r"Error\(s\) in loading state_dict")
LOST_CONNECTION = re.compile(r"gloo|nccl|NCCL|TCPStore|[Ss]ocket|c10d|Timed out waiting")
FAILS_AGAIN = 2  # exit status of a rank that would fail again if it were restarted
IS_WRONG = 3  # exit status of each rank if the closing check found a mistake


class LaunchedWrongly(Exception):  # noqa: N818 - the settings are wrong, not the code
    """The trainer can't be run like this; the text explains why, without a traceback."""


class CheckFailed(Exception):  # noqa: N818 - the trainer is wrong, not the check
    """The ranks did not train like one process; raised on every rank, printed by rank 0."""

    def __init__(self, mistake: Diagnosis) -> None:
        super().__init__(mistake.explanation)
        self.mistake = mistake


REPEATED = (LaunchedWrongly, NotImplementedError, SyntaxError, ImportError, NameError)


def status_of(error: Exception) -> int:
    """Return the exit status of a rank that ends with this error."""
    if isinstance(error, CheckFailed):
        return IS_WRONG
    return FAILS_AGAIN if isinstance(error, REPEATED) else 1


def describe(error: Exception, settings: Settings) -> str:
    """Return what happened, where in the trainer, and what to do."""
    if isinstance(error, LaunchedWrongly):
        return str(error)
    if isinstance(error, CheckFailed):
        return _failed_check(error.mistake, settings)
    place = _place(error, settings)
    if isinstance(error, NotImplementedError) and str(error):
        return f"{error} is not written yet{place}. Run `gradsync check`."
    text = str(error).strip()
    if OTHER_MODEL.search(text) and settings.checkpoint.exists():
        return (
            f"{settings.checkpoint} does not fit the model{place}. {full_stop(text)}\nIf it "
            "belongs to another model, add --fresh to start again, or use another --out."
        )
    if _is_of_the_network(error):
        if LATE.search(text):
            return (
                f"No answer from another rank within {settings.timeout} s{place}. That rank is "
                "stuck or has ended, or the network between the nodes is interrupted. "
                "`gradsync train --test-links` tests each link."
            )
        if CLOSED.search(text):
            return (
                f"The connection to another rank was closed{place}: that rank has ended. Its own "
                "message, if there is one, says why."
            )
    return f"{_traceback(error, settings)}\n{type(error).__name__}{place}: {full_stop(text)}"


def _failed_check(mistake: Diagnosis, settings: Settings) -> str:
    where = f"\nRead {settings.phase}/GUIDELINES.md, “{mistake.guide}”." if mistake.guide else ""
    return (
        f"Closing check: {mistake.code}. {mistake.explanation}{where}\n`gradsync explain "
        f"{mistake.code}` shows wrong and right lines; `gradsync check {settings.phase}` tests "
        "each function."
    )


def follows_another(error: Exception) -> bool:
    """Return whether a rank fails because another one has ended."""
    text = str(error)
    return bool(_is_of_the_network(error) and CLOSED.search(text) and not LATE.search(text))


def _is_of_the_network(error: Exception) -> bool:
    return isinstance(error, DistError) or bool(LOST_CONNECTION.search(str(error)))


def _place(error: Exception, settings: Settings) -> str:
    """Return the last line in the traceback that is in the trainer's folder; "" without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(str(settings.trainer.parent)):
            return f", at {frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
    return ""


def _traceback(error: Exception, settings: Settings) -> str:
    """Return the traceback, without the frames before the first one in the trainer's folder."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.filename.startswith(str(settings.trainer.parent)) for frame in frames]
    first = own.index(True) if True in own else 0
    lines = traceback.format_list(frames[first:])
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()
