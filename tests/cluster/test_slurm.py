"""The sbatch scripts of `cluster/`, on a real Slurm whose nodes are all on this machine."""

import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from slurm import PROGRAMS, slurm_cluster
from small_mnist import mnist_files, write

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)), reason="Slurm is not installed: see `make slurm`"
    ),
]
ROOT = Path(__file__).parents[2]
TRAINER = "solutions/phase2/template_trainer.py"
JOB_SECONDS = 120
EPOCH = re.compile(r"^epoch (\d+): ", re.MULTILINE)


@pytest.fixture(scope="module")
def slurm():
    with slurm_cluster(nodes=4) as running:
        yield running


@pytest.fixture
def submit(slurm, tmp_path):
    """Submit a script of `cluster/`; return the job's number."""
    data = write(tmp_path / "digits", mnist_files(train=400, test=100))

    def submitted(script, *arguments, options=()):
        return slurm.submit(
            f"cluster/{script}.sbatch",
            *arguments,
            options=[f"--output={tmp_path}/job.out", *options],
            cwd=ROOT,
            GRADSYNC_DATA=str(data),
            VENV=sys.prefix,
        )

    return submitted


@pytest.fixture
def output(tmp_path):
    """Return the output of the job."""

    def read():
        path = tmp_path / "job.out"
        return path.read_text() if path.exists() else ""

    return read


@pytest.mark.parametrize(
    ("script", "nodes"), [("train", 1), ("train_2_nodes", 2), ("train_4_nodes", 4)]
)
def test_the_same_trainer_runs_on_one_two_and_four_nodes(
    script, nodes, slurm, submit, output, tmp_path
):
    out = tmp_path / "run"
    job = submit(script, TRAINER, "--nproc", 1, "--epochs", 2, "--out", out)

    state = slurm.wait(job, JOB_SECONDS)

    assert state == "COMPLETED", output()
    assert output().count("[Rank ") == nodes
    assert f"[Rank {nodes - 1}] Training samples: {400 // nodes}\n" in output()
    assert EPOCH.findall(output()) == ["0", "1"]
    assert {path.name for path in out.iterdir()} == {
        "checkpoint.pt",
        "curves.png",
        "history.json",
        "model.pt2",
        "settings.json",
    }


def test_each_link_between_two_nodes_is_measured(slurm, submit, output):
    job = submit("test_distributed", "--nproc", 2)

    state = slurm.wait(job, JOB_SECONDS)

    assert state == "COMPLETED", output()
    lines = [line.split() for line in output().splitlines() if not line.startswith("gradsync:")]
    assert [(words[0], words[1]) for words in lines[:5]] == [
        (name, "ok") for name in ("reachable", "init", "barrier", "broadcast", "all_reduce")
    ]
    links = {words[1]: words[2] for words in lines if words[0] == "link"}
    assert set(links) == {"0-1", "0-2", "0-3", "1-2", "1-3", "2-3"}
    assert set(links.values()) <= {"ok", "slow"}


def test_a_preempted_job_continues_from_its_checkpoint(slurm, submit, output, tmp_path):
    arguments = [TRAINER, "--nproc", 1, "--epochs", 400, "--out", tmp_path / "run"]
    job = submit("train", *arguments, options=["--nodelist=n1"])
    _await(lambda: len(EPOCH.findall(output())) > 2)

    urgent = ["--partition=urgent", "--nodelist=n1", "--cpus-per-task=4", "--wrap=sleep 1"]
    other = slurm.run("sbatch", "--parsable", "--output=/dev/null", *urgent, cwd=tmp_path).strip()
    state = slurm.wait(other, JOB_SECONDS)
    _await(lambda: "Continuing from" in output())
    slurm.run("scancel", job)

    assert state == "COMPLETED"
    assert "Stopped by SIGTERM. After a preemption, Slurm starts this job again" in output()
    epochs = [int(epoch) for epoch in EPOCH.findall(output())]
    assert epochs == sorted(set(epochs)), "an epoch was repeated or left out"


def _await(happened):
    until = time.monotonic() + JOB_SECONDS
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.1)
