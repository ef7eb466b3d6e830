"""Nothing stays behind, however a run ends: no process, file or descriptor."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from gradsync import RankFailure, run_ranks
from gradsync.ranks import get_launcher

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def warm_process():
    return get_launcher("fork")._process


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(is_so, seconds=10.0):
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.02)
    return is_so()


def daemonise():
    """Leave a process behind that has cut all ties, and return its id."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        os.write(write, str(pid).encode())
        os._exit(0)
    return int(os.read(read, 20))


def succeeds():
    dist.barrier()


def raises(rank):
    if rank == 1:
        raise ValueError
    dist.barrier()


def is_killed(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def deadlocks(rank):
    if rank == 1:
        dist.barrier()


def never_ends():
    time.sleep(60)


def leaves_a_daemon():
    daemonise()


def leaves_a_daemon_and_dies():
    daemonise()
    os._exit(1)


def leaves_loader_workers():
    data = TensorDataset(torch.ones(20, 1000))
    loader = iter(DataLoader(data, num_workers=2, persistent_workers=True))
    next(loader)
    os._exit(1)


def leaves_a_process_that_will_not_go():
    def stay():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    multiprocessing.get_context("fork").Process(target=stay).start()


def writes_files():
    tempfile.mkdtemp()
    Path("in-the-current-folder").write_text("x" * 1000)
    Path(tempfile.gettempdir(), "sub").mkdir(exist_ok=True)


PROGRAMS = [
    succeeds,
    raises,
    is_killed,
    deadlocks,
    never_ends,
    leaves_a_daemon,
    leaves_a_daemon_and_dies,
    leaves_loader_workers,
    leaves_a_process_that_will_not_go,
    writes_files,
]


def run_to_whatever_end(program):
    with suppress(RankFailure):
        run_ranks(program, 2, timeout=0.5 if program is never_ends else 30)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder for temporary files of this test alone, with a name of the usual length."""
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@linux_only
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_run_leaves_no_process_file_or_descriptor(program, folder):
    run_ranks(succeeds, 1)
    shared = set(os.listdir("/dev/shm"))
    descriptors = os.listdir("/proc/self/fd")

    run_to_whatever_end(program)

    assert children_of(warm_process().pid) == []
    assert os.listdir("/proc/self/fd") == descriptors
    assert list(folder.iterdir()) == []
    assert eventually(lambda: set(os.listdir("/dev/shm")) <= shared)


def test_spawned_ranks_leave_nothing_either(folder):
    descriptors = os.listdir("/dev/fd")

    with pytest.raises(RankFailure):
        run_ranks(is_killed, 2, launcher="spawn")

    assert os.listdir("/dev/fd") == descriptors
    assert list(folder.iterdir()) == []


@pytest.fixture
def script(folder, tmp_path):
    """Run a program of the user's in a process of its own; its lines are read as they come."""
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


ROOT = Path(__file__).parents[2]
PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from gradsync import run_ranks
from gradsync.ranks import LauncherError, get_launcher

# Whoever started the tests in the background had their Ctrl-C ignored, and ours with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

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
    """Wait for both ranks of `never_end` to be at work, and return their ids."""
    paths = [folder / "pid-0", folder / "pid-1"]
    assert eventually(lambda: all(path.exists() for path in paths), seconds=60)
    return [int(path.read_text()) for path in paths]


def descendants_of(pid):
    for child in children_of(pid):
        yield int(child)
        yield from descendants_of(int(child))


@linux_only
@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_ranks_end_with_a_caller_that_is_killed(script, folder, launcher):
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
def test_losing_the_warm_process_is_told_and_mended(script, folder):
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
    assert "the process that forks the ranks is gone" in process.stdout.readline()
    assert process.stdout.readline() == "0 1\n"
    assert eventually(lambda: not any(map(is_alive, ranks)))


@linux_only
def test_a_fork_of_the_caller_has_a_launcher_of_its_own(script):
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
