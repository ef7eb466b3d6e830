"""Ranks in a sandbox: what they can see and use, and what they can't."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ordinary_user import as_an_ordinary_user

from gradsync import RankFailure, run_ranks
from gradsync.errors import SandboxError
from gradsync.ranks.sandbox import sandbox

ROOT = Path(__file__).parents[4]
PACKAGE = sandbox.PACKAGE
pytestmark = pytest.mark.usefixtures("needs_sandbox")


def apart(function, world_size=1, **options):
    return run_ranks(function, world_size, launcher="sandbox", **options)


def sandbox_fails(function, world_size=1, **options):
    with pytest.raises(RankFailure) as caught:
        apart(function, world_size, **options)
    return caught.value.observation.failure


def test_ranks_all_reduce_as_outside():
    def reduce(rank):
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor)
        return tensor

    seen = apart(reduce, 3)

    assert [value.item() for value in seen] == [6.0] * 3


def test_a_rank_sees_only_processes_of_its_run():
    def look():
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

    assert len(apart(look)[0]) == 2  # the first process of the sandbox, and the rank


def test_the_course_of_a_wheel_is_hidden_but_for_what_ranks_need(monkeypatch, tmp_path):
    packages = tmp_path / "site-packages"
    course = packages / "gradsync_course"
    for name in ("hidden", "support"):
        (course / name).mkdir(parents=True)
        (course / name / "tests.py").touch()
    monkeypatch.setattr(sandbox, "CARRIED", course)
    monkeypatch.setattr(sandbox, "_readable", lambda: [str(packages)])

    command = sandbox._inner(str(tmp_path / "own"), [str(course / "support")])
    seen = subprocess.run(
        [*command, "--", "find", str(course)], check=True, capture_output=True, text=True
    )
    write = subprocess.run([*command, "--", "touch", str(course / "new")], check=False)

    assert seen.stdout.split() == [str(course), *map(str, _below(course / "support"))]
    assert write.returncode != 0
    sandbox.check(course)


def _below(folder):
    return [folder, *folder.iterdir()]


def test_a_rank_sees_neither_home_nor_course_nor_secrets(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "xyzzy")

    def look(home, root):
        inside = [path.name for path in Path(root).iterdir()]
        return Path(home).exists(), inside, dict(os.environ), os.listdir()

    home, inside, environ, own = apart(look, home=str(Path.home() / ".bashrc"), root=str(ROOT))[0]

    assert not home
    environment = {part for part in Path(sys.prefix).parts if part.startswith(".venv")}
    assert set(inside) <= {"gradsync"} | environment
    assert "xyzzy" not in str(environ)
    assert not {"solutions", "tests"} & set(own)


def test_the_inherited_memory_has_no_secrets(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "xyzzy-in-memory")

    def look():
        return Path("/proc/self/environ").read_text()

    assert "xyzzy" not in apart(look)[0]


@pytest.mark.parametrize("place", ["/usr/x", "/etc/x", "/x", "/dev/x", "/proc/sys/kernel/hostname"])
def test_a_rank_can_write_only_to_its_own_tmp(place):
    def write(place):
        try:
            with Path(place).open("w") as file:
                file.write("x")
        except OSError:
            return "refused"
        return "written"

    assert apart(write, place=place)[0] == "refused"


def test_a_rank_reaches_no_service_outside():
    def connect(port):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return "refused"
        return "reached"

    with socket.create_server(("127.0.0.1", 0)) as server:
        seen = apart(connect, port=server.getsockname()[1])

    assert seen[0] == "refused"


def test_a_rank_has_no_privileges_and_can_get_none():
    def look():
        status = Path("/proc/self/status").read_text()
        unshare = subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False)
        return status, unshare.returncode

    status, code = apart(look)[0]
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)

    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert code != 0


def test_a_run_does_not_find_files_of_an_earlier_one():
    def leave():
        Path("/tmp/left").write_text("x")
        Path("/dev/shm/left").write_text("x")

    def find():
        return os.path.exists("/tmp/left"), os.path.exists("/dev/shm/left")

    apart(leave)

    assert apart(find)[0] == (False, False)


def test_a_daemon_ends_with_its_run():
    def leave_a_daemon(seconds):
        there, started = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(started, b".")
                os.execvp("sleep", ["sleep", seconds])
            os._exit(0)
        os.read(there, 1)

    mark = f"{os.getpid()}.25"
    apart(leave_a_daemon, seconds=mark)

    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [command for command in commands if command == f"sleep\0{mark}\0".encode()]


@pytest.mark.slow
def test_ranks_that_use_too_much_memory_are_stopped_and_reported(monkeypatch):
    def hog():
        kept = []
        while True:
            kept.append(bytearray(2**28))
            kept[-1][::4096] = b"x" * len(kept[-1][::4096])

    failure = sandbox_fails(hog, 2, timeout=60)

    assert failure.diagnosis.code == "out-of-memory"
    assert "GiB of memory together" in failure.diagnosis.explanation


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_ranks_that_start_too_many_processes_are_stopped_and_reported(kind):
    def bomb(kind):
        while True:
            if kind == "threads":
                threading.Thread(target=time.sleep, args=[600], daemon=True).start()
            elif os.fork() == 0:
                time.sleep(600)

    failure = sandbox_fails(bomb, kind=kind, timeout=60)

    assert failure.diagnosis.code == "rank-crashed"
    assert "processes and threads" in failure.diagnosis.explanation


def test_the_disk_of_a_rank_is_limited():
    def hog():
        try:
            for number in range(100):
                Path(f"/tmp/{number}").write_bytes(bytes(2**26))
        except OSError as error:
            return error.errno, number

    error, files = apart(hog)[0]

    assert error == 28  # ENOSPC
    assert files * 2**26 <= sandbox.DISK


ORDINARY = """
from gradsync import run_ranks
import os, torch, torch.distributed as dist

def f(rank):
    t = torch.ones(1)
    dist.all_reduce(t)
    return t.item(), os.path.exists("/etc/passwd"), os.getuid()

print(run_ranks(f, 2, launcher="sandbox")[1])
"""


@pytest.mark.slow
def test_an_ordinary_user_has_the_same_sandbox():
    done = subprocess.run(
        [*as_an_ordinary_user(), sys.executable, "-c", ORDINARY],
        cwd="/",
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.strip() == "(2.0, False, 1000)", done.stderr


def test_a_course_that_ranks_could_see_is_refused():
    with pytest.raises(SandboxError, match="Move the course"):
        sandbox.check(secret=Path(sys.prefix) / "course")


def test_without_bubblewrap_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(SandboxError, match="apt install bubblewrap"):
        sandbox.check()


def test_a_bubblewrap_that_hangs_is_given_up(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sandbox, "CREATE_SECONDS", 0.2)

    with pytest.raises(SandboxError, match=r"has not finished after 0\.2 s"):
        sandbox.check()


def test_a_sandbox_that_never_starts_is_given_up(monkeypatch):
    monkeypatch.setattr(sandbox, "CREATE_SECONDS", 0.2)
    info, orphans = os.pipe()
    os.write(orphans, b'{ "child-pid": 3')

    with pytest.raises(SandboxError, match=r"has not created a sandbox within 0\.2 s"):
        sandbox._first_process(info)

    os.close(orphans)
