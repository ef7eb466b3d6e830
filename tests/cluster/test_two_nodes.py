"""torchrun's rendezvous between two network namespaces, and a link that fails."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaces import cut, two_nodes
from small_mnist import mnist_files, write

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root"
    ),
]
ROOT = Path(__file__).parents[2]
GRADSYNC = [sys.executable, "-m", "gradsync"]
TRAINER = ROOT / "solutions" / "phase1" / "template_trainer.py"
SECONDS = 120
TIMEOUT = 5  # of the ranks


@pytest.fixture
def nodes():
    with two_nodes() as both:
        yield both


@pytest.fixture
def train(nodes, tmp_path):
    """Start `gradsync train` on a node, with the first node as the master."""
    data = write(tmp_path / "digits", mnist_files(train=400, test=100))
    words = [*GRADSYNC, "train", "phase1", TRAINER, "--nodes", 2, "--nproc", 1]
    words += ["--master", nodes[0].address, "--out", tmp_path / "run", "--timeout", TIMEOUT]

    @contextmanager
    def started(node, *options):
        process = node.start(*words, *options, GRADSYNC_DATA=str(data), OMP_NUM_THREADS="1")
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    return started


def _rest(process):
    """Return what a process still prints; it must end."""
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")


def _until(process, beginning):
    """Read the output of a process until a line begins like this."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith(beginning):
            return
    pytest.fail("".join(seen))


def test_two_nodes_train_together(train, nodes):
    with train(nodes[0], "--epochs", 2) as first, train(nodes[1], "--epochs", 2) as second:
        texts = [_rest(first), _rest(second)]

    assert [first.returncode, second.returncode] == [0, 0], texts
    everything = "".join(texts)
    assert "gloo backend, 2 processes on 2 nodes" in everything
    assert "Epoch 2/2" in everything


def test_a_link_that_is_cut_ends_both_sides_with_a_clear_error(train, nodes):
    with train(nodes[0], "--epochs", 9999) as first, train(nodes[1], "--epochs", 9999) as second:
        printing, other = _with_output(first, second)
        _until(printing, "Epoch 3/")
        cut(nodes[1])
        began = time.monotonic()
        texts = [_rest(printing), _rest(other)]
        seconds = time.monotonic() - began

    assert [first.returncode, second.returncode] == [1, 1]
    for text in texts:
        assert f"No answer from another rank within {TIMEOUT} s" in text
        assert "Traceback" not in text
    assert seconds < 8 * TIMEOUT


def _with_output(first, second):
    """Return first the process that has rank 0, which alone prints."""
    import select

    ready, _, _ = select.select([first.stdout, second.stdout], [], [], SECONDS)
    for process, other in ((first, second), (second, first)):
        if process.stdout in ready and process.stdout.readline().startswith("Distributed"):
            return process, other
    pytest.fail("no rank has printed anything")


def test_a_cut_link_ends_a_job_that_may_restart(train, nodes):
    options = ["--epochs", 9999, "--max-restarts", 1, "--wait", 10]
    with train(nodes[0], *options) as first, train(nodes[1], *options) as second:
        printing, other = _with_output(first, second)
        _until(printing, "Epoch 3/")
        cut(nodes[1])
        texts = {process: _rest(process) for process in (printing, other)}

    assert [first.returncode, second.returncode] == [1, 1]
    assert "not all 2 nodes had come" in texts[first]
    assert "The connection from" in texts[second]


def test_a_node_that_can_not_reach_the_master_says_so(train, nodes):
    cut(nodes[1])

    with train(nodes[1], "--wait", 3) as process:
        text = _rest(process)

    assert process.returncode == 2
    assert f"The master {nodes[0].address}:29500 could not be reached" in text


def test_a_master_that_is_not_started_is_named(train, nodes):
    with train(nodes[1], "--wait", 3) as process:
        text = _rest(process)

    assert process.returncode == 2
    assert "can be reached, but for 3 s nothing listened on its port" in text
