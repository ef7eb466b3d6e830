"""A run leaves no process, file or descriptor, however it ends."""

import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import children_of, eventually, linux_only
from torch.utils.data import DataLoader, TensorDataset

from gradsync import RankFailure, run_ranks
from gradsync.ranks import get_launcher


def warm_process():
    return get_launcher("fork")._process


def daemonise():
    """Start a detached process, and return its id."""
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
