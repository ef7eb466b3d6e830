"""`gradsync train` continues some runs from their checkpoint, and refuses other runs."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from gradsync.cli.app import app
from gradsync.errors import UnusableInput
from gradsync.launch.finished import check_continuation, is_finished, remove
from gradsync.launch.settings import Settings


@pytest.fixture
def interrupted(tmp_path):
    """The settings of a run of 9 epochs that was interrupted after three."""
    trainer = tmp_path / "phase1" / "template_trainer.py"
    trainer.parent.mkdir()
    trainer.touch()
    settings = Settings(tmp_path, "phase1", trainer, tmp_path, epochs=9)
    check_continuation(settings)
    settings.checkpoint.write_bytes(b"weights")
    settings.history.write_text(json.dumps([{"epoch": epoch} for epoch in range(3)]))
    return settings


@pytest.mark.parametrize("epochs", [3, 9, 20])
def test_it_continues_with_the_same_settings_up_to_any_later_epoch(epochs, interrupted):
    check_continuation(replace(interrupted, epochs=epochs, timeout=5, max_restarts=2))

    assert interrupted.checkpoint.is_file()


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("batch_size", 10, "--batch-size 50, now 10"),
        ("lr", 0.2, "--lr 0.1, now 0.2"),
        ("samples", 99, "--samples 10000, now 99"),
        ("seed", 1, "--seed 0, now 1"),
        ("phase", "phase2", "phase phase1, now phase2"),
    ],
)
def test_another_setting_is_refused_and_named(name, value, text, interrupted):
    with pytest.raises(UnusableInput) as refused:
        check_continuation(replace(interrupted, **{name: value}))

    assert f"has other settings: {text}. To continue it" in str(refused.value)
    assert "add --fresh" in str(refused.value)
    check_continuation(interrupted)  # the refused settings were not recorded


def test_another_file_is_refused(interrupted, tmp_path):
    other = tmp_path / "other.py"

    with pytest.raises(UnusableInput, match=rf"trainer \S+template_trainer.py, now {other}"):
        check_continuation(replace(interrupted, trainer=other))


def test_all_changed_settings_are_named_in_one_message(interrupted):
    with pytest.raises(UnusableInput, match=r"--batch-size 50, now 1; --seed 0, now 2\. To"):
        check_continuation(replace(interrupted, batch_size=1, seed=2))


def test_fewer_epochs_than_the_checkpoint_has_are_refused(interrupted):
    with pytest.raises(UnusableInput, match="has 3 epochs already, more than --epochs 2"):
        check_continuation(replace(interrupted, epochs=2))


@pytest.mark.parametrize("record", [None, "", "[1]", "{}"])
def test_without_a_readable_record_the_checkpoint_is_continued(record, interrupted):
    interrupted.record.unlink()
    if record is not None:
        interrupted.record.write_text(record)

    check_continuation(replace(interrupted, lr=0.3))

    assert json.loads(interrupted.record.read_text())["lr"] == 0.3


def test_a_complete_run_is_finished_unless_more_epochs_are_requested(interrupted):
    interrupted.exported.write_bytes(b"model")

    assert is_finished(replace(interrupted, epochs=3))
    assert not is_finished(interrupted)


@pytest.fixture
def complete(interrupted):
    """The settings of a complete run of three epochs, with its trainer and its exported model."""
    interrupted.exported.write_bytes(b"model")
    return replace(interrupted, epochs=3)


def train(settings, *words):
    words = ["train", settings.trainer, "--out", settings.out, *words]
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_same_command_leaves_a_complete_run_as_it_is(complete):
    before = {path: path.stat().st_mtime_ns for path in complete.out.iterdir()}

    result = train(complete, "--epochs", 3)

    assert result.exit_code == 0
    assert "is complete: 3 epochs with these settings. Nothing was changed." in result.output
    assert "--fresh" in result.output
    assert {path: path.stat().st_mtime_ns for path in complete.out.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--epochs", 3, "--lr", 0.5], "--lr 0.1, now 0.5"),
        (["--epochs", 2], "has 3 epochs already, more than --epochs 2"),
    ],
)
def test_a_complete_run_is_not_replaced_by_one_with_other_settings(words, text, complete):
    result = train(complete, *words)

    assert isinstance(result.exception, UnusableInput)
    assert text in str(result.exception)
    assert complete.exported.read_bytes() == b"model"


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_each_node_of_a_complete_run_ends_without_waiting_for_the_others(address, complete):
    result = train(complete, "--epochs", 3, "--nodes", 2, "--master", address)

    assert result.exit_code == 0
    assert ("is complete" in result.output) == (address == "127.0.0.1")


def test_after_a_removal_any_settings_are_accepted(interrupted):
    remove(interrupted)

    check_continuation(replace(interrupted, lr=0.3, epochs=1))

    assert json.loads(interrupted.record.read_text())["lr"] == 0.3


def test_the_command_refuses_before_it_starts_any_rank(interrupted):
    result = train(interrupted, "--lr", 0.5)

    assert isinstance(result.exception, UnusableInput)
    assert "--lr 0.1, now 0.5" in str(result.exception)
