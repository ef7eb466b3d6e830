"""Each helper process has a time limit: one that was stopped can't make the grader hang."""

import os
import signal
import stat
from contextlib import suppress

import pytest
from download_samples import clone
from pool_tasks import double_or_stop
from processes import children_of, linux_only

from gradsync.errors import SandboxError
from gradsync.grading.imports import clones
from gradsync.grading.processes import pool
from gradsync.grading.suite import parallel
from gradsync.ranks import LauncherError
from gradsync.ranks.host.launchers import fork
from gradsync.ranks.host.launchers.fork import ForkLauncher
from gradsync.ranks.sandbox import sandbox
from gradsync.submission import read_submission, tars

pytestmark = linux_only
STOPS = "#!/bin/sh\nkill -STOP $$\n"


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(children_of(os.getpid()))
    yield
    assert set(children_of(os.getpid())) <= before


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Replace a program by one that stops itself."""

    def replace(name):
        path = tmp_path / "bin" / name
        path.parent.mkdir()
        path.write_text(STOPS)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")

    return replace


def test_a_stopped_process_of_the_pool_loses_only_its_task(monkeypatch):
    monkeypatch.setattr(pool, "TASK_SECONDS", 1.0)

    results = list(pool.in_pool(double_or_stop, [1, 13, 2], count=2))
    assert sorted(results, key=str) == [(1, 2), (13, None), (2, 4)]


def test_a_slow_task_is_done_while_the_processor_is_shared(monkeypatch):
    monkeypatch.setattr(pool, "TASK_SECONDS", 60.0)
    busy = [os.fork() or _spin() for _ in range(2 * (os.cpu_count() or 1))]
    try:
        results = list(pool.in_pool(double_or_stop, [1, 2, 3], count=2))
    finally:
        for process in busy:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    assert sorted(results) == [(1, 2), (2, 4), (3, 6)]


def _spin():
    while True:
        pass


def test_a_stopped_worker_of_a_suite_is_an_error_of_the_grader(monkeypatch):
    monkeypatch.setattr(parallel, "LAST_SECONDS", 0.5)
    launcher = ForkLauncher()
    stop = lambda: os.kill(os.getpid(), signal.SIGSTOP)  # noqa: E731
    try:
        with (
            pytest.raises(LauncherError, match="did not finish its last one"),
            parallel.forked_graders(1, launcher, stop) as [worker],
        ):
            worker.result()
    finally:
        launcher.close()


@pytest.mark.parametrize("sign", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("moment", ["before the ranks start", "while they run"])
def test_a_lost_process_that_forks_the_ranks_ends_the_run(tmp_path, monkeypatch, sign, moment):
    monkeypatch.setattr(fork, "END_SECONDS", 0.5)
    launcher = ForkLauncher()
    try:
        with launcher.started(1, str(tmp_path), []):
            [warm] = set(children_of(os.getpid())) & {launcher._process.pid}
        if moment == "before the ranks start":
            os.kill(warm, sign)
        with suppress(LauncherError), launcher.started(1, str(tmp_path), []) as ranks:
            os.kill(launcher._process.pid, sign)
            with pytest.raises(LauncherError, match="has ended, or does not answer"):
                ranks.starved()

        with launcher.started(1, str(tmp_path), []) as ranks:
            assert ranks.starved() >= 0
    finally:
        launcher.close()


def test_a_stopped_reader_of_an_archive_makes_it_unreadable_and_says_what_to_do(
    tmp_path, monkeypatch
):
    (tmp_path / "stop.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    (tmp_path / "ada.tar.gz").write_bytes(b"anything")
    monkeypatch.setattr(tars, "PROGRAM", tmp_path / "stop.py")
    monkeypatch.setattr(tars, "SECONDS", 0.5)

    [note] = read_submission(tmp_path / "ada.tar.gz", _Course()).notes
    assert note.startswith("unreadable: ")
    assert "Run the same command again" in note


def test_a_stopped_git_leaves_a_clone_without_a_time(tmp_path, monkeypatch, program):
    folder = clone(tmp_path / "ada")
    program("git")
    monkeypatch.setattr(clones, "SECONDS", 0.5)

    assert clones.commit_time(folder) is None


def test_a_stopped_bubblewrap_means_no_sandbox(monkeypatch, program):
    program("bwrap")
    monkeypatch.setattr(sandbox, "CREATE_SECONDS", 0.5)

    with pytest.raises(SandboxError, match=r"not finished after 0\.5 s"):
        sandbox.check()


class _Course:
    root = None
    phases = ("phase1",)

    def files(self, _phase):
        return ("template_trainer.py",)
