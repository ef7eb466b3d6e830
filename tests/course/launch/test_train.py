"""`gradsync train` with the solutions and with a template, on one node."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import children_of, linux_only
from small_mnist import mnist_files, write

from gradsync.course.catalogue import find_course

ROOT = find_course().root
SECONDS = 120
EPOCH = re.compile(r"^epoch (\d+): ", re.MULTILINE)
pytestmark = [linux_only, pytest.mark.slow]


class Run:
    """A `gradsync train` in the background."""

    def __init__(self, process, output):
        self.process = process
        self._output = output

    @property
    def text(self):
        return self._output.read_text()

    def status(self):
        return self.process.wait(SECONDS)

    def wait_for(self, text):
        until = time.monotonic() + SECONDS
        while text not in self.text:
            assert time.monotonic() < until, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.01)

    def rank(self, number):
        """Return the process of a rank."""
        for pid in children_of(self.process.pid):
            if f"\0RANK={number}\0" in Path(f"/proc/{pid}/environ").read_text():
                return pid
        raise AssertionError(f"there is no rank {number}")


@pytest.fixture
def start(tmp_path):
    """Start `gradsync train` in `tmp_path`; each start has its own output."""
    data = write(tmp_path / "digits", mnist_files(train=400, test=100))
    environ = {**os.environ, "GRADSYNC_DATA": str(data), "CUDA_VISIBLE_DEVICES": ""}
    runs = []

    def started(*words, phase="phase1", out="run", trainer=None):
        output = tmp_path / f"output-{len(runs)}"
        trainer = trainer or ROOT / "solutions" / phase / "template_trainer.py"
        command = [sys.executable, "-m", "gradsync", "train", trainer, "--out", out, *words]
        with output.open("w") as file:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=tmp_path,
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        runs.append(Run(process, output))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.wait()


def history(tmp_path, out="run"):
    return json.loads((tmp_path / out / "history.json").read_text())


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("phase", ["phase1", "phase2"])
def test_rank_0_prints_saves_plots_and_exports(phase, start, tmp_path):
    run = start("--epochs", 2, phase=phase)

    assert run.status() == 0, run.text
    lines = run.text.splitlines()
    assert lines[0] == "Distributed training: gloo backend, 2 processes"
    assert lines[1].startswith("Master: localhost:")
    assert lines[2:4] == ["[Rank 0] Training samples: 200", "[Rank 1] Training samples: 200"]
    assert EPOCH.findall(run.text) == ["0", "1"]
    assert "Closing check: 2 ranks ended with the same weights" in run.text
    assert "loaded again, its outputs differ by at most" in lines[-1]
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [entry["epoch"] for entry in history(tmp_path)] == [0, 1]


def test_after_a_killed_rank_training_continues_as_if_nothing_had_happened(start, tmp_path):
    undisturbed = start("--epochs", 40, phase="phase2", out="undisturbed")
    assert undisturbed.status() == 0
    run = start("--epochs", 40, "--max-restarts", 1, phase="phase2")
    run.wait_for("epoch 3:")

    os.kill(run.rank(1), signal.SIGKILL)
    began = time.monotonic()
    run.wait_for("Continuing from run/checkpoint.pt")
    seconds = time.monotonic() - began

    assert run.status() == 0, run.text
    assert "with local rank 1" in run.text
    assert "was killed by SIGKILL" in run.text
    assert "Restart 1 of at most 1" in run.text
    continued = history(tmp_path)  # the epochs since the restart
    assert continued == history(tmp_path, "undisturbed")[-len(continued) :]
    assert seconds < 10


def test_without_restarts_the_killed_rank_is_named(start):
    run = start("--epochs", 9999, phase="phase2")
    run.wait_for("epoch 3:")

    os.kill(run.rank(1), signal.SIGKILL)

    assert run.status() == 1
    assert "gradsync: Rank 1 was killed by SIGKILL. Run the same command again" in run.text
    assert run.text.count("SIGKILL") == 1
    assert "Traceback" not in run.text


def test_a_preempted_run_continues_and_a_complete_one_is_not_lost(start, tmp_path):
    run = start("--epochs", 40, phase="phase2")
    run.wait_for("epoch 3:")
    run.process.terminate()
    assert run.status() == 128 + signal.SIGTERM
    assert "Stopped by SIGTERM. Run the same command again" in run.text

    again = start("--epochs", 40, phase="phase2")

    assert again.status() == 0, again.text
    last, first = int(EPOCH.findall(run.text)[-1]), int(EPOCH.findall(again.text)[0])
    assert first in (last + 1, last + 2)  # the line of the last epoch may be missing
    assert [entry["epoch"] for entry in history(tmp_path)] == list(range(first, 40))
    complete = files(tmp_path / "run")
    third = start("--epochs", 40, phase="phase2")
    assert third.status() == 0
    assert "The run in run is complete: 40 epochs with these settings." in third.text
    assert files(tmp_path / "run") == complete
    longer = start("--epochs", 41, phase="phase2")
    assert longer.status() == 0
    assert EPOCH.findall(longer.text) == ["40"]
    fresh = start("--epochs", 1, "--fresh", phase="phase2")
    assert fresh.status() == 0
    assert EPOCH.findall(fresh.text) == ["0"]


def test_phase_1_has_no_checkpoint_so_a_restart_begins_again(start, tmp_path):
    run = start("--epochs", 6, "--max-restarts", 1)
    run.wait_for("epoch 3:")

    os.kill(run.rank(1), signal.SIGKILL)

    assert run.status() == 0, run.text
    assert EPOCH.findall(run.text)[-6:] == ["0", "1", "2", "3", "4", "5"]
    assert [entry["epoch"] for entry in history(tmp_path)] == list(range(6))


@pytest.fixture
def mistaken(tmp_path):
    """Return the trainer of a phase in a folder of its own, with one text replaced."""

    def written(phase, old, new):
        folder = tmp_path / phase
        folder.mkdir(exist_ok=True)
        for path in (ROOT / "solutions" / phase).glob("*.py"):
            text = path.read_text()
            assert path.name != "template_trainer.py" or old in text
            (folder / path.name).write_text(text.replace(old, new))
        return folder / "template_trainer.py"

    return written


def test_a_trainer_that_sums_is_not_certified_until_it_is_fixed(start, mistaken, tmp_path):
    trainer = mistaken(
        "phase2", "torch.div(param.grad, dist.get_world_size(), out=part)", "part.copy_(param.grad)"
    )

    run = start("--epochs", 1, "--max-restarts", 2, trainer=trainer)

    assert run.status() == 1
    assert "[Rank 0] Closing check: sum-not-mean. Each step is 2 times too large" in run.text
    assert "[Rank 1]" not in run.text.replace("[Rank 1] Training samples", "")
    assert "Restart" not in run.text
    assert not (tmp_path / "run" / "model.pt2").exists()
    fixed = start("--epochs", 1, trainer=mistaken("phase2", "", ""))
    assert fixed.status() == 0, fixed.text
    assert "Continuing" not in fixed.text  # the weights of the wrong steps are not used
    assert EPOCH.findall(fixed.text) == ["0"]


def test_the_files_own_train_is_called(start, mistaken):
    trainer = mistaken("phase1", "    history = []", "    raise RuntimeError('mine')")

    run = start("--epochs", 1, trainer=trainer)

    assert run.status() == 1
    assert "RuntimeError" in run.text
    assert "mine" in run.text


def test_the_check_replaces_no_file_of_the_trainer_and_refuses_shortcuts(start, mistaken, tmp_path):
    saves = "    if info.rank == 0:\n        torch.save(model.state_dict(), 'mine.pt')\n"
    saves += "    broadcast_model(model)\n"
    trainer = mistaken("phase1", "    broadcast_model(model)\n", saves)
    shortcut = (
        "    import torch.nn.parallel as parallel\n    model = parallel.DistributedDataParallel"
    )

    run = start("--epochs", 1, trainer=trainer)
    assert run.status() == 0, run.text
    ready = mistaken("phase1", "    broadcast_model(model)\n", f"{shortcut}(model)\n")
    refused = start("--epochs", 1, "--max-restarts", 1, trainer=ready, out="other")

    assert "conv1.weight" in torch.load(tmp_path / "mine.pt")  # not the check's small model
    assert not (tmp_path / "run" / "check").exists()
    assert refused.status() == 1
    assert "Closing check: forbidden-shortcut. torch's DistributedDataParallel" in refused.text
    assert "Restart" not in refused.text


def test_a_complete_run_of_other_files_does_not_speak_for_the_changed_ones(start, mistaken):
    assert start("--epochs", 1, trainer=mistaken("phase1", "", "")).status() == 0

    run = start("--epochs", 1, trainer=mistaken("phase1", "param.grad /= ", "param.grad /= 1 #"))

    assert run.status() == 2
    assert "have changed since it started, and were not checked" in run.text


def test_an_unfinished_exercise_is_named_and_not_tried_again(start):
    run = start("--max-restarts", 3, trainer=ROOT / "phase1" / "template_trainer.py")

    assert run.status() == 1
    messages = re.findall(r"\[Rank [01]\] phase1/read_rank_info is not written yet", run.text)
    assert len(messages) in (1, 2)
    assert "Run `gradsync check`." in run.text
    assert "It was not restarted, because it would fail in the same way again." in run.text
    assert "was killed" not in run.text


def test_ctrl_c_stops_it_without_a_traceback(start):
    run = start("--epochs", 9999, "--fresh", phase="phase2")
    run.wait_for("epoch 3:")

    os.killpg(run.process.pid, signal.SIGINT)

    assert run.status() == 128 + signal.SIGINT
    assert "Stopped by SIGINT. Run the command again without --fresh to continue" in run.text
    assert "Traceback" not in run.text


def test_each_pair_of_ranks_is_a_link(start):
    run = start("--test-links", "--nproc", 3)

    assert run.status() == 0, run.text
    lines = [line.split() for line in run.text.splitlines()]
    assert [words[1] for words in lines if words[0] == "link"] == ["0-1", "0-2", "1-2"]


def test_a_transformer_is_trained_and_resumed_on_another_number_of_ranks(start, tmp_path):
    sizes = ["--samples", 96, "--batch-size", 4]
    run = start("--epochs", 1, *sizes, phase="phase3")
    assert run.status() == 0, run.text

    again = start("--epochs", 2, "--nproc", 3, *sizes, phase="phase3")

    assert again.status() == 0, again.text
    for text in (run.text, again.text):
        assert "tokens/s" in text
        assert "Closing check: " in text
        assert "Sample:\ndef " in text
    assert (tmp_path / "run" / "checkpoint").is_dir()
    assert [entry["step"] for entry in history(tmp_path)] == list(range(16))
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
