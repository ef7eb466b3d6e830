"""A script, and a session of pytest, on 4 ranks: started by gradsync and by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.figure import Figure, in_turns, seconds, shown
from benchmarks.start import RANKS
from gradsync import run_ranks

TURNS = 3
SCRIPT = """
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
total = torch.ones(1000)
dist.all_reduce(total)
dist.destroy_process_group()
"""
TESTS = """
import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="session", autouse=True)
def group():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("size", range(1, 21))
def test_sum(size):
    total = torch.ones(size)
    dist.all_reduce(total)
    assert total.sum() == size * dist.get_world_size()
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
PYTEST = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "test_sum.py"]


def figures() -> Iterator[Figure]:
    """Measure both in turns with torchrun."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        (folder / "test_sum.py").write_text(TESTS)
        run_ranks(script=folder / "train.py", world_size=RANKS)  # warm
        yield _figure(
            f"a script on {RANKS} ranks, an all-reduce",
            lambda: run_ranks(script=folder / "train.py", world_size=RANKS),
            lambda: _python([*TORCHRUN, "train.py"], folder),
        )
        yield _figure(
            f"20 tests in one session of pytest on {RANKS} ranks",
            lambda: _python([*PYTEST, "--on-ranks", str(RANKS)], folder),
            lambda: _python([*TORCHRUN, *PYTEST], folder),
        )


def _figure(what: str, ours: Callable[[], object], theirs: Callable[[], object]) -> Figure:
    mine, other = in_turns(lambda: seconds(ours), lambda: seconds(theirs), TURNS)
    return Figure(what, shown(mine), f"torchrun: {shown(other)}", other / mine, "", True)


def _python(arguments: Sequence[str], folder: Path) -> None:
    command = [sys.executable, *arguments]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{command} failed:\n{ended.stdout}\n{ended.stderr}")
