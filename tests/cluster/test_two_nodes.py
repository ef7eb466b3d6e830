"""torchrun's rendezvous between two network namespaces, and a link that fails."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
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
SECONDS = 60
TIMEOUT = 5  # of the ranks


@pytest.fixture
def nodes():
    with two_nodes() as both:
        yield both


class Running:
    """`gradsync train` on one of the nodes."""

    def __init__(self, process, output):
        self.process = process
        self.output = output

    @property
    def text(self):
        return self.output.read_text()

    def status(self):
        """Wait until it ends, and return its exit status."""
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it hangs:\n{self.text}")


@pytest.fixture
def train(nodes, tmp_path):
    """Start `gradsync train` on a node, with the first node as the master."""
    data = write(tmp_path / "digits", mnist_files(train=400, test=100))
    words = [*GRADSYNC, "train", "phase1", TRAINER, "--nodes", 2, "--nproc", 1]
    words += ["--master", nodes[0].address, "--out", tmp_path / "run", "--timeout", TIMEOUT]

    with ExitStack() as at_the_end:

        def start(node, *options):
            output = tmp_path / node.name
            environ = {"GRADSYNC_DATA": str(data), "OMP_NUM_THREADS": "1"}
            process = node.start(*words, *options, output=output, **environ)
            at_the_end.callback(process.wait)
            at_the_end.callback(process.kill)
            return Running(process, output)

        yield start


def _train_until_cut(train, nodes, *options):
    """Train on both nodes, cut their link after some epochs, and return both."""
    both = [train(node, "--epochs", 9999, *options) for node in nodes]
    until = time.monotonic() + SECONDS
    while not any("epoch 3:" in running.text for running in both):
        assert time.monotonic() < until, [running.text for running in both]
        time.sleep(0.05)
    cut(nodes[1])
    return both


def test_two_nodes_train_together(train, nodes):
    both = [train(node, "--epochs", 2) for node in nodes]

    statuses = [running.status() for running in both]

    assert statuses == [0, 0], [running.text for running in both]
    everything = "".join(running.text for running in both)
    assert "gloo backend, 2 processes on 2 nodes" in everything
    assert "epoch 1:" in everything


def test_a_link_that_is_cut_ends_both_sides_with_a_clear_error(train, nodes):
    both = _train_until_cut(train, nodes)
    began = time.monotonic()

    statuses = [running.status() for running in both]

    assert statuses == [1, 1]
    assert time.monotonic() - began < 8 * TIMEOUT
    for running in both:
        assert f"No answer from another rank within {TIMEOUT} s" in running.text
        assert "Traceback" not in running.text


def test_a_cut_link_ends_a_job_that_may_restart(train, nodes):
    first, second = _train_until_cut(train, nodes, "--max-restarts", 1, "--wait", 10)

    statuses = [first.status(), second.status()]

    assert statuses == [1, 1]
    assert "Not all 2 nodes connected to" in first.text
    assert "The connection from" in second.text


def test_a_node_that_can_not_reach_the_master_reports_it(train, nodes):
    cut(nodes[1])
    second = train(nodes[1], "--wait", 3)

    assert second.status() == 2
    assert f"The master {nodes[0].address}:29500 could not be reached" in second.text


def test_a_master_that_is_not_started_is_reported(train, nodes):
    second = train(nodes[1], "--wait", 3)

    assert second.status() == 2
    assert "can be reached, but for 3 s nothing listened on its port" in second.text
