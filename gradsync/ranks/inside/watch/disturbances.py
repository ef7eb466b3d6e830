"""Untrusted side: disturb this rank at its calls, as a test has planned: it is late, or ends."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain, repeat
from typing import Any

from gradsync.ranks.protocol.faults import Fault, holds
from gradsync.records import Collective


class Disturbances:
    """The faults of one rank, and the calls at which it is late."""

    def __init__(self, setup: Mapping[str, Any], hold: Callable[[], None]) -> None:
        """Plan them; `hold` blocks until the other ranks can't continue without this one."""
        self._hold = hold
        planned = [Fault(**fault) for fault in setup["faults"]]
        self._faults = [fault for fault in planned if fault.rank == setup["rank"]]
        before, behind = holds(setup["schedule"] or 0, setup["rank"], setup["world_size"])
        self._before, self._behind = chain(before, repeat(False)), chain(behind, repeat(False))
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
        if next(self._before):
            self._hold()

    def after(self) -> None:
        """Hold the rank after a call has started."""
        if next(self._behind):
            self._hold()
