"""Temporary folders, and how abandoned ones are removed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gradsync.temporary_folders import unpacked

FILES = {"phase1/template_trainer.py": b"x = 1"}
ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal
from gradsync.temporary_folders import unpacked

with unpacked({"phase1/template_trainer.py": b""}):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def abandoned(temporary):
    """Leave a folder as a killed grader does, and return it."""
    leave_a_folder(temporary)
    [folder] = temporary.iterdir()
    return folder


def leave_a_folder(temporary):
    environ = {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", KILLED], env=environ, check=False)


def test_the_files_exist_while_the_block_runs(temporary):
    with unpacked(FILES) as folder:
        seen = (folder / "phase1" / "template_trainer.py").read_bytes()

    assert seen == b"x = 1"
    assert list(temporary.iterdir()) == []


def test_no_other_user_can_read_the_folder(temporary):
    with unpacked(FILES) as folder:
        assert folder.stat().st_mode & 0o077 == 0


def test_folders_of_a_killed_grader_are_removed_by_the_next_grade(abandoned, temporary):
    with unpacked(FILES) as folder:
        seen = list(temporary.iterdir())

    assert seen == [folder]
    assert folder != abandoned


def test_folders_left_during_a_grade_are_removed_at_its_end(temporary):
    with unpacked(FILES):
        leave_a_folder(temporary)
        assert len(list(temporary.iterdir())) == 2

    assert list(temporary.iterdir()) == []


def test_parallel_graders_do_not_remove_each_others_folders(temporary):
    with unpacked(FILES) as one, unpacked(FILES) as other:
        assert one != other
        assert one.is_dir()


def test_a_folder_removed_by_another_grader_is_created_again(temporary, monkeypatch):
    made = []

    def make_and_lose_the_first(prefix):
        made.append(Path(tempfile.gettempdir()) / f"{prefix}{len(made)}")
        if len(made) > 1:
            made[-1].mkdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)

    with unpacked(FILES) as folder:
        assert [folder] == made[1:]


def test_a_link_is_not_followed(temporary, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kept").touch()
    (temporary / "gradsync-owned-0").symlink_to(elsewhere)

    with unpacked(FILES):
        pass
    assert (elsewhere / "kept").exists()
