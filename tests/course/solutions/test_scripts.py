"""The course's files run as scripts, as a learner runs them."""

import re
import shutil

import pytest
from launching import TORCHRUN, output_of

from gradsync.course.catalogue import find_course

SOLUTIONS = find_course().root / "solutions"
# Each process writes its own file, because two processes that write to one pipe may mix their
# lines. Training starts with the same weights each time, so the result is the same each time.
SAYS_WHO_IS_LEFT = """
import atexit, os, pathlib, runpy, sys, torch

def say():
    names = [path.read_text() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    pathlib.Path(f"threads-at-the-end.{os.getpid()}").write_text("".join(names))

atexit.register(say)
torch.manual_seed(0)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.fixture
def phase(request, tmp_path):
    """A copy of a phase's solutions, with run.py, which runs one of them."""
    folder = tmp_path / request.param
    shutil.copytree(SOLUTIONS / request.param, folder)
    (folder / "run.py").write_text(SAYS_WHO_IS_LEFT)
    return folder


def _threads_of_gloo(folder):
    """Return gloo's threads at the end of each process of run.py; any could abort its process."""
    all_left = [path.read_text().split() for path in folder.glob("threads-at-the-end.*")]
    return [[name for name in left if "gloo" in name] for left in all_left]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["phase1", "phase2"], indirect=True)
def test_torchrun_trains_the_small_cnn(phase):
    shown = output_of([*TORCHRUN, "run.py", "template_trainer.py"], phase)

    accuracies = [float(percent) for percent in re.findall(r"val accuracy ([\d.]+)%", shown)]
    assert len(accuracies) == len(re.findall("^epoch", shown, re.MULTILINE)) > 0
    assert accuracies[-1] > 95
    assert _threads_of_gloo(phase) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["phase2"], indirect=True)
def test_torchrun_compares_parallel_layers_with_whole_ones(phase):
    shown = output_of([*TORCHRUN, "run.py", "template_model_parallel.py"], phase)

    assert "2 ranks, equal to the unsplit layers: yes" in shown
    assert _threads_of_gloo(phase) == [[], []]
