"""The nodes find their master, or report a clear error if they can't reach it."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from torch.distributed import TCPStore

from gradsync.cli.launch import train
from gradsync.course.catalogue import find_course
from gradsync.launch import placement
from gradsync.launch.placement import LaunchError, Master
from gradsync.launch.settings import Settings

COURSE = find_course()


def test_the_option_has_priority_over_the_environment():
    master = placement.find_master({"MASTER_ADDR": "nowhere.invalid"}, "127.0.0.1:1234")

    assert (master.host, master.port, master.is_here) == ("127.0.0.1", 1234, True)


def test_the_environment_names_the_master():
    master = placement.find_master({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}, None)

    assert (master.address, master.port) == ("127.0.0.1", 1234)


def test_without_a_master_the_message_names_the_option():
    with pytest.raises(LaunchError, match="Add --master HOST"):
        placement.find_master({}, None)


def test_a_name_without_an_address_is_refused():
    with pytest.raises(LaunchError, match="can't be resolved"):
        placement.find_master({}, "nowhere.invalid")


@pytest.mark.parametrize("port", ["x", "0", "65536"])
def test_an_invalid_port_is_refused(port):
    with pytest.raises(LaunchError, match=f"--master has the port '{port}'"):
        placement.find_master({}, f"127.0.0.1:{port}")


def test_a_port_that_another_program_uses_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LaunchError, match=f"Port {port} is in use .* process {os.getpid()}"):
            placement.check_port(Master("here", port, "127.0.0.1", is_here=True))


@pytest.fixture
def silent():
    """A server that accepts connections and never answers, as a master of another machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Master("there", server.getsockname()[1], "127.0.0.1", is_here=False)


def test_a_port_that_accepts_and_never_answers_is_refused_in_time(silent):
    """The wait is in a separate process, because torch continues to connect for some seconds."""
    code = (
        "import sys, time; from gradsync.launch.placement import Master, wait_for_master\n"
        "master = Master('there', int(sys.argv[1]), '127.0.0.1', is_here=False)\n"
        "began = time.monotonic()\n"
        "try: wait_for_master(master, 2)\n"
        "finally: print(time.monotonic() - began < 10)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(silent.port)], capture_output=True, text=True, check=False
    )

    assert f"there:{silent.port} accepts connections, but within 2 s" in done.stderr
    assert done.stdout == "True\n"


def test_a_store_of_torch_is_accepted_as_the_master():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    placement.wait_for_master(Master("there", store.port, "127.0.0.1", is_here=False), 60)


def test_sigterm_ends_the_wait_with_a_message(tmp_path):
    code = (
        "from gradsync.launch import network; network.is_this_machine = lambda _: False\n"
        "from gradsync.cli import main; main()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = ["train", "--nodes", "2", "--master", address, "--out", tmp_path]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, words)], cwd=COURSE.root, stderr=subprocess.PIPE
        )
        connection, _ = server.accept()  # now it waits for an answer
        time.sleep(1)

        process.terminate()
        _, errors = process.communicate(timeout=20)
        connection.close()

    assert b"Stopped by SIGTERM before all nodes were connected." in errors
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("nodes", "tasks", "expected"), [("2", "2", 2), ("2", "8", 1), ("1", "1", 1)]
)
def test_srun_with_a_process_on_each_node_gives_the_number_of_nodes(nodes, tasks, expected):
    step = {"SLURM_STEP_NUM_NODES": nodes, "SLURM_STEP_NUM_TASKS": tasks}

    assert placement.nodes_of_step(step) == expected


def test_without_srun_there_is_one_node():
    assert placement.nodes_of_step({}) == 1


# The command's arguments


@pytest.mark.parametrize(
    ("words", "phase", "file"),
    [
        ([], "phase1", "phase1/template_trainer.py"),
        (["2"], "phase2", "phase2/template_trainer.py"),
        (
            ["solutions/phase2/template_trainer.py"],
            "phase2",
            "solutions/phase2/template_trainer.py",
        ),
        (["phase1", "gradsync/model.py"], "phase1", "gradsync/model.py"),
    ],
)
def test_a_phase_or_a_file_or_both_select_the_trainer(words, phase, file, monkeypatch):
    monkeypatch.chdir(COURSE.root)

    assert train._trainer(COURSE, words) == (phase, COURSE.root / file)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["phase9"], "'phase9' is neither a phase"),
        (["no_such_file.py"], "The trainer no_such_file.py does not exist"),
        (["gradsync/model.py"], "Name the phase, too: gradsync train phase1 gradsync/model.py"),
        (["1", "2"], "Name one phase and one file at most"),
    ],
)
def test_other_arguments_are_refused(words, problem, monkeypatch):
    monkeypatch.chdir(COURSE.root)

    with pytest.raises(LaunchError, match=problem):
        train._trainer(COURSE, words)


def test_more_ranks_than_gpus_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    settings = Settings(COURSE.root, "phase1", tmp_path / "trainer.py", tmp_path)

    with pytest.raises(LaunchError, match="2 ranks need 2 GPUs, but this machine has 1"):
        train._launch(settings, None, 1, 2, wait=1)
