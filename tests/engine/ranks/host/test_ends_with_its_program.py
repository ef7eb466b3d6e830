"""Ranks end with the program that started them, on Ctrl-C and with the warm process."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from processes import descendants_of, eventually, is_alive, linux_only


@pytest.fixture
def script(folder, tmp_path):
    """Run a user's program in a new process, whose output is read line by line."""
    processes = []

    def start(code):
        path = tmp_path / "program.py"
        path.write_text(PREAMBLE + textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "FOLDER": str(folder)},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


ROOT = Path(__file__).parents[4]
PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from gradsync import run_ranks
from gradsync.ranks import LauncherError, get_launcher

def tell(*words):
    print(*words, flush=True)

def never_end(rank):
    here = Path(os.environ["FOLDER"])
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    (here / f"writing-{rank}").write_text(str(os.getpid()))
    (here / f"writing-{rank}").rename(here / f"pid-{rank}")
    time.sleep(60)
"""


def pids_in(folder):
    """Wait until both ranks of `never_end` run, and return their process ids."""
    paths = [folder / "pid-0", folder / "pid-1"]
    assert eventually(lambda: all(path.exists() for path in paths), seconds=60)
    return [int(path.read_text()) for path in paths]


@linux_only
@pytest.mark.parametrize("launcher", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_ranks_end_if_their_caller_is_killed(script, folder, launcher):
    process = script(f"run_ranks(never_end, 2, launcher={launcher!r})")
    ranks = pids_in(folder)
    family = {*ranks, *descendants_of(process.pid)}

    process.send_signal(signal.SIGKILL)

    if launcher == "spawn":
        assert eventually(lambda: not any(map(is_alive, ranks)))
    else:
        assert eventually(lambda: not any(map(is_alive, family)))
        assert eventually(lambda: {path.name for path in folder.iterdir()} == {"pid-0", "pid-1"})


@linux_only
def test_the_warm_process_ends_with_its_caller(script):
    process = script(
        """
        run_ranks(lambda: None, 1)
        tell(get_launcher()._process.pid)
        """
    )
    warm = int(process.stdout.readline())

    assert process.wait() == 0
    assert eventually(lambda: not is_alive(warm))


@linux_only
def test_ctrl_c_ends_all_ranks_and_leaves_the_launcher_usable(script, folder):
    process = script(
        """
        try:
            run_ranks(never_end, 2)
        except KeyboardInterrupt:
            tell("interrupted")
        tell(*run_ranks(lambda rank: rank, 3))
        """
    )
    ranks = pids_in(folder)

    process.send_signal(signal.SIGINT)

    assert process.stdout.readline() == "interrupted\n"
    assert not any(map(is_alive, ranks))
    assert process.stdout.readline() == "0 1 2\n"


@linux_only
def test_a_lost_warm_process_is_reported_and_replaced(script, folder):
    process = script(
        """
        tell(*run_ranks(lambda rank: rank, 2))
        warm = get_launcher()._process.pid
        os.kill(warm, signal.SIGKILL)
        os.waitid(os.P_PID, warm, os.WEXITED | os.WNOWAIT)
        tell(*run_ranks(lambda rank: rank, 2))
        tell(get_launcher()._process.pid)
        try:
            run_ranks(never_end, 2)
        except LauncherError as error:
            tell(error)
        tell(*run_ranks(lambda rank: rank, 2))
        """
    )

    assert [process.stdout.readline() for _ in range(2)] == ["0 1\n", "0 1\n"]
    warm = int(process.stdout.readline())
    ranks = pids_in(folder)
    os.kill(warm, signal.SIGKILL)
    assert "the process that forks the ranks has ended" in process.stdout.readline()
    assert process.stdout.readline() == "0 1\n"
    assert eventually(lambda: not any(map(is_alive, ranks)))


@pytest.mark.slow
@linux_only
def test_a_fork_of_the_caller_has_its_own_launcher(script):
    process = script(
        """
        run_ranks(lambda rank: rank, 1)
        warm = get_launcher()._process.pid
        child = os.fork()
        seen = run_ranks(lambda rank: rank + 10 * (child == 0), 2)
        tell(*seen, warm == get_launcher()._process.pid)
        if child:
            os.waitpid(child, 0)
            tell(*run_ranks(lambda rank: rank, 2))
        """
    )

    said = process.communicate()[0].splitlines()

    assert sorted(said) == ["0 1", "0 1 True", "10 11 False"]
