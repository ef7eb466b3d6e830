import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradsync.ranks.sandbox import cgroups
from gradsync.ranks.sandbox.cgroups import Refusals

MIB = 2**20
JOIN = """
import os, threading, time
from pathlib import Path
from gradsync.ranks.sandbox.cgroups import ControlGroup
ControlGroup(Path({memory!r}), Path({tasks!r})).join()
"""
START_THREADS = """
for _ in range(50):
    threading.Thread(target=time.sleep, args=[60], daemon=True).start()
"""
FILL_SOCKETS = """
import socket
pairs = [socket.socketpair() for _ in range(400)]
for pair in pairs:
    for end in pair:
        end.setblocking(False)
        try:
            while end.send(bytes(2**16)):
                pass
        except BlockingIOError:
            pass
"""


@pytest.fixture
def group():
    made = cgroups.make(memory=64 * MIB, tasks=20)
    if made is None:
        pytest.skip("can't create a control group here: it requires root or a delegated branch")
    yield made
    made.close()


def run_in(group, code):
    join = JOIN.format(memory=str(group.memory), tasks=str(group.tasks))
    return subprocess.run(
        [sys.executable, "-c", join + code], capture_output=True, text=True, check=False
    )


def test_processes_and_threads_beyond_its_limit_are_refused(group):
    done = run_in(group, START_THREADS)

    assert "can't start new thread" in done.stderr
    assert group.refusals() == Refusals(memory=0, tasks=1)


def test_memory_without_a_process_is_limited_too(group):
    done = run_in(group, FILL_SOCKETS)

    assert done.returncode == -9
    assert group.refusals().memory >= 1


def test_use_within_the_limits_is_not_refused(group):
    done = run_in(group, "print(len(bytearray(2**20)))")

    assert done.stdout == f"{MIB}\n"
    assert group.refusals() == Refusals()


def test_a_closed_group_is_removed(group):
    run_in(group, "")

    group.close()

    assert not group.memory.exists()
    assert not group.tasks.exists()


def test_a_group_of_a_killed_grader_is_removed_by_the_next(group):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = group.tasks.with_name(f"gradsync-{ended.pid}-0")
    left.mkdir()

    cgroups.make(memory=64 * MIB, tasks=20).close()

    assert not left.exists()


class Tree:
    """A fake tree of control groups (version 2), with the files that are read."""

    def __init__(self, root, monkeypatch):
        self.root = root
        mounts, ours = root / "mountinfo", root / "ours"
        mounts.write_text(
            f"30 24 0:26 / {root} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        )
        ours.write_text("0::/user.slice/app.slice/shell.scope\n")
        monkeypatch.setattr(cgroups, "TREES", mounts)
        monkeypatch.setattr(cgroups, "OURS", ours)

    def write(self, group, controllers):
        (self.root / group).mkdir(parents=True, exist_ok=True)
        (self.root / group / "cgroup.subtree_control").write_text(controllers)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    return Tree(tmp_path, monkeypatch)


def test_in_the_newer_tree_a_group_is_a_sibling_of_this_processs_group(tree):
    tree.write("user.slice/app.slice", "cpu memory pids\n")
    tree.write("user.slice/app.slice/shell.scope", "\n")

    made = cgroups.make(memory=MIB, tasks=9)

    assert made.memory == made.tasks
    assert made.memory.parent == tree.root / "user.slice" / "app.slice"
    assert made.memory.name.startswith(f"gradsync-{os.getpid()}-")


def test_without_controllers_no_group_is_created(tree):
    tree.write("user.slice/app.slice", "cpu\n")
    tree.write("user.slice/app.slice/shell.scope", "\n")

    assert cgroups.make(memory=MIB, tasks=9) is None


def test_without_control_groups_no_group_is_created(monkeypatch):
    monkeypatch.setattr(cgroups, "TREES", Path("/nowhere"))

    assert cgroups.make(memory=MIB, tasks=9) is None
