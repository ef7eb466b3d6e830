"""A file run by torchrun on 2 ranks of this machine, as a learner runs it."""

import os
import subprocess
import sys

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def output_of(command, folder):
    """Run a command in a folder, on processors alone; it must end well. Returns what it prints."""
    environ = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),  # torchrun leaves its logs
    }
    done = subprocess.run(
        command, cwd=folder, env=environ, check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
