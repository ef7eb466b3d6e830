"""Each check of `gradsync doctor --launch` finds the problem that a test creates."""

import json
import os
import socket
import subprocess
import sys

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


# The troubleshooting list: processes hang at initialisation


def test_an_interface_that_does_not_exist_is_found():
    finding = addresses.interface({"GLOO_SOCKET_IFNAME": "wlan7"})

    assert finding.status == "failed"
    assert "wlan7, which does not exist" in finding.found
    assert "lo (127.0.0.1)" in finding.remedy


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


def test_a_master_without_an_address_is_found():
    finding = addresses.master({"MASTER_ADDR": "no-such-host.invalid"})

    assert finding.status == "failed"
    assert "'no-such-host.invalid' can't be resolved" in finding.found
    assert "hostname -I" in finding.remedy


def test_a_loopback_master_of_several_nodes_is_found():
    finding = addresses.master({"MASTER_ADDR": "127.0.0.1", "SLURM_JOB_NUM_NODES": "2"})

    assert finding.status == "failed"
    assert "Other nodes can't reach this address" in finding.remedy


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


def test_a_port_that_is_not_a_number_is_found():
    assert addresses.port({"MASTER_PORT": "29500a"}).status == "failed"


# Slower than on a single node


def test_a_batch_that_is_too_small_is_found_and_a_larger_one_is_recommended(monkeypatch):
    monkeypatch.setattr(software, "_all_reduce", lambda _numbers: 1.0)  # seconds: a slow network
    finding = software.communication(batch_size=1)

    assert finding.status == "warning"
    assert "Use a larger --batch-size (with about " in finding.remedy


def test_more_threads_than_cores_are_found():
    finding = machine.cores({"OMP_NUM_THREADS": "8"}, ranks=4, available=8)

    assert finding.status == "warning"
    assert "4 ranks with 8 threads each on 8 cores" in finding.found
    assert finding.remedy == "Set OMP_NUM_THREADS=2, or unset it."


def test_more_ranks_than_cores_are_found():
    assert machine.cores({}, ranks=8, available=2).status == "warning"


def test_a_number_of_threads_that_is_not_a_number_is_found():
    assert machine.cores({"OMP_NUM_THREADS": "many"}, ranks=2).status == "failed"


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


def test_a_slow_debugging_mode_is_found():
    finding = environment.debugging({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})

    assert (finding.status, finding.remedy) == ("warning", "Run: unset TORCH_DISTRIBUTED_DEBUG")


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


@pytest.mark.parametrize(("version", "status"), [((3, 9), "failed"), ((3, 99), "warning")])
def test_an_unsupported_python_is_found(version, status):
    assert machine.python(version).status == status


@pytest.mark.parametrize(
    ("others", "ranks", "cores", "status"),
    [
        (0.4, 2, 2, "ok"),
        (2.0, 2, 4, "ok"),
        (1.1, 2, 2, "warning"),
        (9.0, 1, 2, "warning"),
        (0.2, 8, 2, "ok"),  # too many ranks: `cores` reports this
    ],
)
def test_a_busy_machine_is_found(others, ranks, cores, status):
    assert machine.load(ranks, others, cores).status == status


def test_too_little_shared_memory_is_found(monkeypatch):
    tiny = os.statvfs_result((4096, 4096, 16384, 100, 100, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: tiny)

    finding = machine.shared_memory()

    assert finding.status == "failed"
    assert finding.found == "400 KiB free of 64 MiB"
    assert "--shm-size" in finding.remedy


def test_missing_shared_memory_is_found(tmp_path):
    assert machine.shared_memory(tmp_path / "shm").status == "failed"


# Every process is rank 0 of 1


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but RANK is not"),
        ({"RANK": "0", "WORLD_SIZE": "four"}, "WORLD_SIZE=four is not a number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is not less than WORLD_SIZE=4"),
    ],
)
def test_wrong_variables_of_torchrun_are_found(variables, found):
    finding = environment.torchrun(variables)

    assert (finding.status, finding.found.partition(";")[0]) == ("warning", found)


def test_missing_variables_of_slurm_are_found():
    finding = environment.slurm({"SLURM_PROCID": "1"})

    assert finding.found == "SLURM_PROCID is set, but SLURM_NTASKS is not"


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
