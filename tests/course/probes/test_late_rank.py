"""Gates, which a late rank passes last: a rank that does not wait for it has continued."""

import os
import signal
import time
from pathlib import Path

from gradsync.ranks import run_ranks
from support.probes import late_rank
from support.probes.late_rank import pass_gate


def after_the_gate(act):
    """Let rank 1 pass a gate and act, and rank 0 pass last; return what rank 0 finds done."""

    def probe(rank):
        pass_gate("gate", rank, 2, last=0)
        if rank == 0:
            Path("passed").touch()
            return Path("acted").exists()
        act()
        Path("acted").touch()
        return None

    return run_ranks(probe, 2, process_group=False, launcher="fork")[0]


def test_the_gate_waits_for_a_rank_without_a_core(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def stopped():
        rank = os.getpid()
        if os.fork() == 0:
            time.sleep(0.7)
            os.kill(rank, signal.SIGCONT)
            os._exit(0)
        os.kill(rank, signal.SIGSTOP)

    assert after_the_gate(stopped)


def test_the_gate_waits_for_a_working_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def busy():
        until = time.thread_time() + 0.4
        while time.thread_time() < until:
            pass

    assert after_the_gate(busy)


def test_the_gate_does_not_wait_for_a_waiting_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def waiting():
        while not Path("passed").exists():
            time.sleep(0.01)

    assert not after_the_gate(waiting)


def test_a_missing_rank_does_not_block_the_gate_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(late_rank, "COMING", 0.1)

    assert late_rank.wait_for(tmp_path / "gate", 1) is None
