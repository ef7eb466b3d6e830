"""`gradsync doctor --launch` on a machine with a broken mount or network link."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from namespaces import cut, two_nodes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="namespaces need root"
    ),
]
DOCTOR = [sys.executable, "-m", "gradsync", "doctor", "--launch", "--json"]


def _checks(command, **environ):
    """Run the doctor; return its checks by name."""
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def _in_namespace(kind, broken):
    """Return the command that runs `broken` in a new namespace, and then the doctor."""
    return ["unshare", kind, "sh", "-c", f'{broken} && exec "$0" "$@"', *DOCTOR]


def test_a_full_shared_memory_is_found():
    tiny = "mount -t tmpfs -o size=1m tmpfs /dev/shm"

    found = _checks(_in_namespace("--mount", tiny))["/dev/shm"]

    assert (found["status"], found["found"]) == ("failed", "1 MiB free of 1 MiB")


def test_a_master_behind_a_broken_link_is_found():
    with two_nodes() as nodes:
        enter = ["ip", "netns", "exec", nodes[1].name]
        before = _checks([*enter, *DOCTOR], MASTER_ADDR=nodes[0].address)["master"]
        cut(nodes[1])
        after = _checks([*enter, *DOCTOR], MASTER_ADDR=nodes[0].address)["master"]

    assert (before["status"], after["status"]) == ("ok", "failed")
    assert "does not answer" in after["found"]


def test_a_slow_network_is_found_and_a_larger_batch_is_recommended():
    slow = "ip link set lo up && tc qdisc add dev lo root tbf rate 50mbit burst 1mbit latency 1s"

    found = _checks(_in_namespace("--net", slow))["overhead"]

    share = re.search(r"(\d+)% of the step", found["found"])
    batch = re.search(r"\(with about (\d+), the all-reduce is 20% of the step\)", found["remedy"])
    assert int(share[1]) > 60
    assert int(batch[1]) > 500


def test_a_host_name_without_an_address_of_this_machine_is_found():
    renamed = "hostname no-such-host.invalid"

    found = _checks(_in_namespace("--uts", renamed), SLURM_JOB_NUM_NODES="2")["interface"]

    assert found["status"] == "warning"
    assert "gloo picks lo (127.0.0.1)" in found["found"]
    assert "the host name 'no-such-host.invalid' does not resolve to an address" in found["found"]
    assert "set GLOO_SOCKET_IFNAME to one of" in found["remedy"]
