"""Work for separate processes, which import it by name."""

import os
import signal


def double_or_die(number: int) -> int:
    """Return twice the number; the process that gets 13 dies."""
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number
