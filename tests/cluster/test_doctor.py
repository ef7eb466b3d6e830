"""`gradsync doctor --launch` where a mount or a link of the machine is really broken."""

import json
import os
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


def test_a_full_shared_memory_is_found():
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" "$@"'

    found = _checks(["unshare", "--mount", "sh", "-c", mount, *DOCTOR])["/dev/shm"]

    assert (found["status"], found["found"]) == ("failed", "1 MiB free of 1 MiB")


def test_a_master_behind_a_broken_link_is_found():
    with two_nodes() as nodes:
        enter = ["ip", "netns", "exec", nodes[1].name]
        before = _checks([*enter, *DOCTOR], MASTER_ADDR=nodes[0].address)["master"]
        cut(nodes[1])
        after = _checks([*enter, *DOCTOR], MASTER_ADDR=nodes[0].address)["master"]

    assert (before["status"], after["status"]) == ("ok", "failed")
    assert "does not answer" in after["found"]
