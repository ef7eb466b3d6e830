"""The history of a trainer that prints its own lines, and checkpoints that are refused."""

import json

import pytest

from gradsync.launch.progress import Progress
from gradsync.launch.rank_errors import describe
from gradsync.launch.settings import Settings


@pytest.fixture
def settings(tmp_path):
    return Settings(tmp_path, "phase2", tmp_path / "template_trainer.py", tmp_path, epochs=4)


@pytest.fixture
def progress(settings, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    return Progress(settings)


def test_epochs_of_an_earlier_run_stay_in_the_history(settings, progress):
    settings.history.write_text(json.dumps([{"epoch": epoch} for epoch in (0, 1, 2)]))

    progress.ended([{"epoch": 2, "train_loss": 0.5}, {"epoch": 3, "train_loss": 0.4}])

    history = json.loads(settings.history.read_text())
    assert [entry["epoch"] for entry in history] == [0, 1, 2, 3]
    assert history[2]["train_loss"] == 0.5


def test_a_checkpoint_that_leaves_no_epoch_to_train_is_reported(settings, progress, capsys):
    progress.ended([])

    assert "No epoch was left to train" in capsys.readouterr().out
    assert not settings.history.exists()


def test_a_checkpoint_of_another_model_is_refused_without_a_traceback(settings):
    settings.checkpoint.write_bytes(b"weights")
    error = RuntimeError("Error(s) in loading state_dict for SmallCNN: size mismatch for fc.bias")

    text = describe(error, settings)

    assert text.startswith(f"{settings.checkpoint} does not fit the model. Error(s) in loading")
    assert "add --fresh" in text
    assert "Traceback" not in text
