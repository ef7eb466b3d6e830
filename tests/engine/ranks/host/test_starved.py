"""How long processes wait for a core, and how long the processes that they start run."""

import os
import signal
import subprocess
import sys
import time

import pytest

from gradsync.ranks.host.processor_time import Helpers, starved


def test_an_ended_process_does_not_wait():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert starved([ended.pid]) == 0


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this system does not report it"
)
def test_a_process_without_a_core_is_starved():
    spin = [sys.executable, "-c", "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"]
    rivals = [subprocess.Popen(spin) for _ in range(3)]
    first, *others = [rival.pid for rival in rivals]
    waited = of_its_own = 0.0
    try:
        until = time.monotonic() + 20
        while (waited < 0.2 or of_its_own >= waited) and time.monotonic() < until:
            time.sleep(0.05)  # the others begin later, or much later on a busy machine
            waited, of_its_own = starved([first]), starved([first], others)
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()

    assert waited >= 0.2
    assert of_its_own < waited


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this system does not report it"
)
def test_the_time_of_ended_processes_counts():
    spin = [sys.executable, "-c", "import os; os.sched_setaffinity(0, {0})\nwhile True: pass"]
    rank, *rivals = [subprocess.Popen(spin) for _ in range(3)]
    helpers = Helpers()
    try:
        until = time.monotonic() + 20
        while min(helpers.ran(), starved([rank.pid])) < 0.2 and time.monotonic() < until:
            time.sleep(0.05)
            helpers.look(rival.pid for rival in rivals)
        for rival in rivals:
            rival.kill()
            rival.wait()
        helpers.look(rival.pid for rival in rivals)
        rank.send_signal(signal.SIGSTOP)
        waited = starved([rank.pid])
        of_its_own = starved([rank.pid], seen=helpers.ran())
    finally:
        rank.kill()
        rank.wait()

    assert helpers.ran() >= 0.2
    assert of_its_own == pytest.approx(max(0.0, waited - helpers.ran()), abs=0.05)
