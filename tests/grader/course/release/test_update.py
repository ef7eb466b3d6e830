"""Updates of a release: a learner's work stays, and a failure changes nothing."""

import json
import os
from pathlib import Path

import pytest

from gradsync.course.release.update import MANIFEST, read_manifest, update
from gradsync.errors import UnusableInput

FIRST = {"README.md": b"one", "phase1/template.py": b"todo", "phase1/pictures/a.svg": b"<svg/>"}
SECOND = {"README.md": b"two", "phase1/template.py": b"todo, better"}


def release(out, files):
    return update(out, files, ["phase1"], read_manifest(out))


def contents(out):
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def out(tmp_path):
    release(tmp_path / "out", FIRST)
    return tmp_path / "out"


def test_a_new_folder_gets_all_files(out):
    assert contents(out) == FIRST


def test_the_same_release_again_changes_nothing(out):
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*") if path.name != MANIFEST}

    change = release(out, FIRST)

    assert (change.added, change.updated, change.kept) == ((), (), ())
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())


def test_files_that_nobody_edited_are_replaced_or_removed(out):
    change = release(out, SECOND)

    assert contents(out) == SECOND
    assert change.removed == ("phase1/pictures/a.svg",)
    assert not (out / "phase1/pictures").exists()


def test_an_edited_file_stays_and_its_new_version_is_beside_it(out):
    (out / "phase1/template.py").write_bytes(b"my work")

    change = release(out, SECOND)

    assert (out / "phase1/template.py").read_bytes() == b"my work"
    assert (out / "phase1/template.py.new").read_bytes() == b"todo, better"
    assert change.beside == {"phase1/template.py": "phase1/template.py.new"}


def test_a_new_version_is_saved_only_once(out):
    (out / "phase1/template.py").write_bytes(b"my work")
    release(out, SECOND)
    (out / "phase1/template.py.new").unlink()  # the learner has compared the two

    change = release(out, SECOND)

    assert change.kept == ("phase1/template.py",)
    assert not (out / "phase1/template.py.new").exists()


def test_an_edited_new_version_is_not_overwritten(out):
    (out / "phase1/template.py").write_bytes(b"my work")
    (out / "phase1/template.py.new").write_bytes(b"my notes")

    release(out, SECOND)

    assert (out / "phase1/template.py.new").read_bytes() == b"my notes"
    assert (out / "phase1/template.py.new-2").read_bytes() == b"todo, better"


def test_a_file_that_was_put_back_to_an_older_version_counts_as_unedited(out):
    release(out, SECOND)
    (out / "README.md").write_bytes(FIRST["README.md"])

    change = release(out, SECOND)

    assert change.updated == ("README.md",)


def test_an_edited_file_that_the_course_dropped_stays(out):
    (out / "phase1/pictures/a.svg").write_bytes(b"mine")

    change = release(out, SECOND)
    again = release(out, SECOND)

    assert (out / "phase1/pictures/a.svg").read_bytes() == b"mine"
    assert change.kept_old == again.kept_old == ("phase1/pictures/a.svg",)


def test_a_deleted_file_comes_back(out):
    (out / "README.md").unlink()

    assert release(out, FIRST).added == ("README.md",)


def test_files_of_the_learner_alone_are_not_touched(out):
    (out / "notes.txt").write_text("mine")

    release(out, SECOND)

    assert (out / "notes.txt").read_text() == "mine"


def test_a_full_disk_leaves_the_release_unchanged(out, monkeypatch):
    before = contents(out) | {MANIFEST: (out / MANIFEST).read_bytes()}

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        release(out, SECOND)

    assert contents(out) | {MANIFEST: (out / MANIFEST).read_bytes()} == before


def test_an_interrupted_update_can_be_repeated(out, monkeypatch):
    replace, moved = Path.replace, []

    def stop_after_two(self, target):
        if len(moved) == 2:  # the manifest and one file
            raise KeyboardInterrupt
        moved.append(target)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        release(out, SECOND)
    monkeypatch.undo()

    change = release(out, SECOND)

    assert contents(out) == SECOND
    assert not change.beside


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")

    with pytest.raises(UnusableInput, match=r"thesis\.tex.*Choose an empty folder"):
        read_manifest(tmp_path)


def test_an_empty_repository_is_accepted(tmp_path):
    (tmp_path / ".git").mkdir()

    assert read_manifest(tmp_path) is None


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("")

    with pytest.raises(UnusableInput, match="is a file"):
        read_manifest(tmp_path / "out")


@pytest.mark.parametrize("text", ["", "[]", '{"phases": []}', '{"phases": [], "files": {"a": 1}}'])
def test_a_damaged_manifest_is_refused(out, text):
    (out / MANIFEST).write_text(text)

    with pytest.raises(UnusableInput, match="is damaged"):
        release(out, SECOND)


def test_a_folder_in_the_place_of_a_file_is_refused(out):
    (out / "new.py").mkdir()

    with pytest.raises(UnusableInput, match=r"new\.py is a folder"):
        release(out, FIRST | {"new.py": b""})


def test_a_file_in_the_place_of_a_folder_is_refused(out):
    (out / "phase2").write_text("mine")

    with pytest.raises(UnusableInput, match="phase2 is a file"):
        release(out, FIRST | {"phase2/template.py": b""})


def test_the_manifest_names_the_phases(out):
    assert json.loads((out / MANIFEST).read_text())["phases"] == ["phase1"]
