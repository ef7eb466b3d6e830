"""Untrusted side: disturb this rank at its calls, as a test has planned: it is late, or ends."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gradsync.ranks.protocol.faults import Fault
from gradsync.records import Collective


class Disturbances:
    """The faults of one rank, and the schedule that decides when it continues."""

    def __init__(self, setup: Mapping[str, Any], hold: Callable[[str], None]) -> None:
        """Plan them; `hold` blocks until it is this rank's turn, in a run with a schedule."""
        self._hold = (lambda _: None) if setup["schedule"] is None else hold
        planned = [Fault(**fault) for fault in setup["faults"]]
        self._faults = [fault for fault in planned if fault.rank == setup["rank"]]
        self._numbers: Counter[tuple[object, ...]] = Counter()
        self.pending = {str(fault) for fault in self._faults if fault.at}  # have not happened yet

    def before(self, call: Collective) -> None:
        """Disturb the rank before a call starts."""
        is_message = call.op in ("send", "recv")
        key = (call.group, call.op, call.peer, call.tag) if is_message else (call.group,)
        self._numbers[key] += 1
        for fault in self._faults:
            if fault.happens_at(call.op, self._numbers[key]):
                self.pending.discard(str(fault))
                if fault.kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(fault.seconds)
        self._hold("before")

    def after(self) -> None:
        """Hold the rank after a call has started that it does not wait for yet."""
        self._hold("after")

    def polls(self) -> None:
        """Hold the rank after it has seen that a call is not complete."""
        self._hold("poll")
