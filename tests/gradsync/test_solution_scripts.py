"""The course's files run by themselves, as a learner runs them, and end as they should."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from gradsync.course import find_course

SOLUTIONS = find_course().root / "solutions"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
SAYS_WHO_IS_LEFT = """
import atexit, pathlib, runpy, sys

def say():
    names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    print("threads at the end:", *names, flush=True)

atexit.register(say)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.fixture
def run(tmp_path):
    """Run a command in a copy of a phase's solutions; returns the lines that it prints."""

    def function(phase, *command):
        folder = tmp_path / phase
        shutil.copytree(SOLUTIONS / phase, folder)
        (folder / "run.py").write_text(SAYS_WHO_IS_LEFT)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            command,
            cwd=folder,
            env={**environ, "TMPDIR": str(tmp_path)},  # torchrun leaves its logs
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return function


def test_the_data_loader_file_shows_its_shares(run):
    shown = run("phase1", sys.executable, "template_data_loader.py")

    assert shown[:4] == [
        "rank 0: [0, 1, 2]",
        "rank 1: [3, 4, 5]",
        "rank 2: [6, 7, 8]",
        "rank 3: [9, 0, 1]",
    ]
    assert [line.endswith("yes") for line in shown[4:]] == [True, True, True]


@pytest.mark.parametrize("phase", ["phase1", "phase2"])
def test_torchrun_trains_the_small_cnn(run, phase):
    shown = run(phase, *TORCHRUN, "run.py", "template_trainer.py")

    accuracies = [float(a) for a in re.findall(r"val accuracy ([\d.]+)%", "\n".join(shown))]
    assert len(accuracies) == len([line for line in shown if line.startswith("epoch")]) > 0
    assert accuracies[-1] > 95
    left = [line for line in shown if line.startswith("threads at the end:")]
    assert len(left) == 2
    assert not any("gloo" in line for line in left), "one may abort the process"


def test_torchrun_compares_parallel_layers_with_whole_ones(run):
    shown = run("phase2", *TORCHRUN, "run.py", "template_model_parallel.py")

    assert "2 ranks, the whole model's outputs: yes" in shown
    assert not any("gloo" in line for line in shown), "a thread of it may abort the process"
