"""Work for separate processes, which import it by name."""

import os
import signal
import time
from pathlib import Path


def double_or_die(number: int) -> int:
    """Return twice the number; the process that gets 13 dies."""
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def die_once(marks: tuple[Path, str]) -> str:
    """Return the name and the number of other running calls; the first call for "mortal" dies."""
    folder, name = marks
    if name == "mortal" and not (folder / name).exists():
        (folder / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    at_work = folder / f"{name}-at-work"
    at_work.touch()
    time.sleep(0.2)
    others = len(list(folder.glob("*-at-work"))) - 1
    at_work.unlink()
    return f"{name} {others}"


def double_or_stop(number: int) -> int:
    """Return twice the number; the process that gets 13 stops, and does not go on."""
    if number == 13:
        os.kill(os.getpid(), signal.SIGSTOP)
    return 2 * number
