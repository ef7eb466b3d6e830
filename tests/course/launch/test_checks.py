"""Each check of `gradsync doctor --launch` finds the problem that a test creates."""

import json
import os
import socket
import subprocess
import sys
from functools import partial

import pytest
from small_mnist import LABELS, mnist_files, write

from gradsync.launch import network
from gradsync.launch.checks import addresses, environment, machine, software


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Install a package's metadata, without code, in a folder that Python searches first.

    The arguments are its name, its version, and the packages that it requires.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # of other processes

    def made(name, version, *required):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {other}" for other in required]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    return made


LOST = {"MASTER_ADDR": "no-such-host.invalid"}
LOOPBACK = {"MASTER_ADDR": "127.0.0.1", "SLURM_JOB_NUM_NODES": "2"}
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
# The problem, the check, the environment, and what is found: the status, its text and the remedy.
FOUND = [
    (
        *("an interface that does not exist", addresses.interface),
        *({"GLOO_SOCKET_IFNAME": "wlan7"}, "failed", "wlan7, which does not exist"),
        "lo (127.0.0.1)",
    ),
    (
        *("a master without an address", addresses.master, LOST, "failed"),
        *("'no-such-host.invalid' can't be resolved", "hostname -I"),
    ),
    (
        *("a loopback master of several nodes", addresses.master, LOOPBACK, "failed", ""),
        "Other nodes can't reach this address",
    ),
    ("a port that is a word", addresses.port, {"MASTER_PORT": "29500a"}, "failed", "", ""),
    (
        *("more threads than cores", partial(machine.cores, ranks=4, available=8)),
        *({"OMP_NUM_THREADS": "8"}, "warning", "4 ranks with 8 threads each on 8 cores"),
        "Set OMP_NUM_THREADS=2, or unset it.",
    ),
    (
        *("more ranks than cores", partial(machine.cores, ranks=8, available=2), {}),
        *("warning", "", ""),
    ),
    (
        *("a number of threads that is a word", partial(machine.cores, ranks=2)),
        *({"OMP_NUM_THREADS": "many"}, "failed", "", ""),
    ),
    (
        *("a slow debugging mode", environment.debugging, DETAIL, "warning", ""),
        "Run: unset TORCH_DISTRIBUTED_DEBUG",
    ),
    (
        *("a rank without a world size", environment.torchrun, {"RANK": "0"}),
        *("warning", "RANK is set, but WORLD_SIZE is not", ""),
    ),
    (
        *("a world size without a rank", environment.torchrun, {"WORLD_SIZE": "2"}),
        *("warning", "WORLD_SIZE is set, but RANK is not", ""),
    ),
    (
        *("a world size that is a word", environment.torchrun),
        *({"RANK": "0", "WORLD_SIZE": "four"}, "warning", "WORLD_SIZE=four is not a number", ""),
    ),
    (
        *("a rank outside the world", environment.torchrun, {"RANK": "4", "WORLD_SIZE": "4"}),
        *("warning", "RANK=4 is not less than WORLD_SIZE=4", ""),
    ),
    (
        *("half of Slurm's variables", environment.slurm, {"SLURM_PROCID": "1"}),
        *("failed", "SLURM_PROCID is set, but SLURM_NTASKS is not", ""),
    ),
]


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row[0])
def test_a_problem_in_the_environment_is_found(row):
    _, check, variables, status, found, remedy = row

    finding = check(variables)

    assert finding.status == status
    assert found in finding.found
    assert remedy in finding.remedy


# The troubleshooting list: processes hang at initialisation


def test_gloo_fails_with_an_interface_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wlan7")

    finding = software.gloo(os.environ)

    assert finding.status == "failed"
    assert finding.remedy == "Unset GLOO_SOCKET_IFNAME=wlan7."


def test_loopback_on_several_nodes_is_found(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")

    finding = addresses.interface({"SLURM_JOB_NUM_NODES": "2"})

    assert finding.status == "warning"
    assert "gloo picks lo (127.0.0.1)" in finding.found


def test_a_host_name_without_an_address_is_found(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")

    finding = addresses.interface({})

    assert "the host name 'no-such-host.invalid' does not resolve to an address" in finding.found


def test_a_master_that_does_not_answer_is_found(monkeypatch):
    monkeypatch.setattr(network, "is_this_machine", lambda _: False)
    monkeypatch.setattr(socket, "create_connection", _no_answer)

    finding = addresses.master({"MASTER_ADDR": "127.0.0.1"})

    assert finding.status == "failed"
    assert "does not answer: timed out" in finding.found
    assert "firewall" in finding.remedy


def _no_answer(*_):
    raise TimeoutError


def test_a_master_that_is_not_started_yet_is_fine(monkeypatch):
    monkeypatch.setattr(network, "is_this_machine", lambda _: False)

    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    finding = addresses.master({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free)})

    assert (finding.status, "nothing listens on its port yet" in finding.found) == ("ok", True)


# Address already in use


def test_the_process_that_uses_the_port_is_named(taken_port):
    finding = addresses.port({"MASTER_PORT": str(taken_port)})

    assert finding.status == "failed"
    assert f"{taken_port} is in use by process {os.getpid()}" in finding.found
    assert f"MASTER_PORT={taken_port + 1}" in finding.remedy


def test_a_busy_usual_port_is_a_warning_on_one_node(monkeypatch, taken_port):
    monkeypatch.setattr(addresses, "DEFAULT_PORT", taken_port)

    finding = addresses.port({})

    assert finding.status == "warning"
    assert "on one node takes a free port" in finding.found


def test_the_port_of_a_slurm_job_follows_from_its_number(monkeypatch, taken_port):
    monkeypatch.setattr(addresses, "DEFAULT_PORT", taken_port - 7)

    finding = addresses.port({"SLURM_JOB_ID": "3007"})

    assert finding.status == "failed"
    assert finding.found.startswith(f"{taken_port} is in use by")


# Slower than on a single node


def test_a_batch_that_is_too_small_is_found_and_a_larger_one_is_recommended(monkeypatch):
    monkeypatch.setattr(software, "_all_reduce", lambda _numbers: 1.0)  # seconds: a slow network
    finding = software.communication(batch_size=1)

    assert finding.status == "warning"
    assert "Use a larger --batch-size (with about " in finding.remedy


def test_gpus_that_are_not_used_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(software, "NVIDIA", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)

    finding = software.gpus(ranks=2)

    assert finding.status == "warning"
    assert "Unset CUDA_VISIBLE_DEVICES" in finding.remedy


def test_more_ranks_than_gpus_are_found(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)

    finding = software.gpus(ranks=2)

    assert (finding.status, finding.remedy) == ("failed", "Use --nproc 1.")


# Crashes at the start


def test_a_torchvision_for_another_torch_is_found(install):
    install("torch", "2.3.0")
    install("torchvision", "0.28.0", "numpy", "torch (==2.13.0)")

    finding = software.torch_and_torchvision()

    assert finding.status == "failed"
    assert "pip install torch==2.13.0 torchvision==0.28.0" in finding.remedy


def test_another_build_of_torchvision_is_found(install):
    install("torch", "2.13.0+cpu")
    install("torchvision", "0.28.0", "torch==2.13.0")

    assert software.torch_and_torchvision().status == "warning"


def test_a_matching_pair_is_fine(install):
    install("torch", "2.13.0+cpu")
    install("torchvision", "0.28.0+cpu", "torch==2.13.0")

    assert software.torch_and_torchvision().status == "ok"


# Every process is rank 0 of 1


def test_a_slurm_that_does_not_answer_is_found(monkeypatch, tmp_path):
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'sinfo: error: no controller' >&2\nexit 1\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    finding = environment.slurm({})

    assert (finding.status, "no controller" in finding.found) == ("warning", True)


# Data


def test_a_folder_without_data_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("GRADSYNC_DATA", str(tmp_path))

    finding = software.data()

    assert finding.status == "failed"
    assert finding.found.startswith("There is no MNIST in GRADSYNC_DATA")


def test_damaged_data_is_found(monkeypatch, tmp_path):
    write(tmp_path, mnist_files() | {f"t10k-{LABELS}": b"half"})
    monkeypatch.setenv("GRADSYNC_DATA", str(tmp_path))

    assert software.data().status == "failed"


def test_without_data_a_download_is_tried(monkeypatch, tmp_path):
    monkeypatch.delenv("GRADSYNC_DATA", raising=False)
    monkeypatch.setattr("gradsync.mnist.usual_folders", lambda: iter([tmp_path]))
    monkeypatch.setattr("gradsync.mnist.MIRROR", "http://127.0.0.1:1/")
    monkeypatch.setenv("no_proxy", "*")

    finding = software.data()

    assert finding.status == "warning"
    assert "can't be downloaded: Connection refused" in finding.found


# The command


def test_the_command_exits_with_1_if_a_check_fails(tmp_path):
    data = str(write(tmp_path, mnist_files()))
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = str(server.getsockname()[1])
    broken = {"OMP_NUM_THREADS": "many"}
    environ = {**os.environ, "GRADSYNC_DATA": data, "MASTER_PORT": free, **broken}
    command = [sys.executable, "-m", "gradsync", "doctor", "--launch", "--json"]

    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    shown = json.loads(done.stdout)
    failed = [check["name"] for check in shown["checks"] if check["status"] == "failed"]
    assert (done.returncode, shown["fine"], failed) == (1, False, ["cores"])
    assert all(check["found"] and check["why"] for check in shown["checks"])


def test_the_command_finds_a_torchvision_for_another_torch(install):
    install("torchvision", "0.18.0", "torch==2.3.0")
    command = [sys.executable, "-m", "gradsync", "doctor", "--launch", "--json"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    [found] = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "torch"]
    assert found["status"] == "failed"
    assert "torchvision 0.18.0, which needs torch 2.3.0" in found["found"]
    assert (
        found["remedy"]
        == "Install versions that match: pip install torch==2.3.0 torchvision==0.18.0"
    )
