"""A learner updates a copy from the .zip of a newer release, or from its folder."""

import json
import zipfile

import pytest

from gradsync.course.release.newer import update_from
from gradsync.course.release.update import MANIFEST, digest, manifest_text, read_manifest, update
from gradsync.course.release.zips import zipped
from gradsync.errors import UnusableInput

OLD = {"README.md": b"one", "phase1/template.py": b"todo", "wheels/a-1.whl": b"wheel 1"}
NEW = {"README.md": b"two", "phase1/template.py": b"todo, better", "wheels/a-2.whl": b"wheel 2",
       "phase2/template.py": b"more"}  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    update(tmp_path / "mine", OLD, ["phase1"], None)
    return tmp_path / "mine"


def packed(path, files=NEW, top="course/", **changed):
    known = {name: ["0" * 64, digest(content)] for name, content in files.items()}
    known["gone.md"] = ["1" * 64]  # of an earlier release
    whole = {**files, MANIFEST: manifest_text(["phase1", "phase2"], known).encode(), **changed}
    path.write_bytes(zipped({f"{top}{name}": content for name, content in whole.items()}))
    return path


@pytest.mark.parametrize("form", ["zip", "flat zip", "folder"])
def test_a_newer_release_replaces_what_was_not_edited(copy, tmp_path, form):
    (copy / "phase1/template.py").write_bytes(b"my work")
    path = packed(tmp_path / "new.zip", top="" if form == "flat zip" else "course/")
    if form == "folder":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "unpacked")
        path = tmp_path / "unpacked/course"
    change = update_from(copy, path)

    assert (copy / "README.md").read_bytes() == b"two"
    assert (copy / "phase2/template.py").read_bytes() == b"more"
    assert (copy / "phase1/template.py").read_bytes() == b"my work"
    assert (copy / "phase1/template.py.new").read_bytes() == b"todo, better"
    assert change.removed == ("wheels/a-1.whl",)
    assert read_manifest(copy).phases == ("phase1", "phase2")
    assert update_from(copy, path).added == ()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"README.md": b"tampered"}, "README.md was changed"),
        ({MANIFEST: b"{"}, "is damaged"),
        ({MANIFEST: json.dumps({"phases": [], "files": {"../x": ["1"]}}).encode()}, "leads out"),
    ],
)
def test_a_changed_release_is_refused_and_nothing_is_written(copy, tmp_path, changed, why):
    path = packed(tmp_path / "new.zip", **changed)

    with pytest.raises(UnusableInput, match=why):
        update_from(copy, path)
    assert (copy / "README.md").read_bytes() == b"one"


@pytest.mark.parametrize("content", [b"no zip", zipped({"a.txt": b"a"})])
def test_another_file_is_refused(copy, tmp_path, content):
    (tmp_path / "x.zip").write_bytes(content)

    with pytest.raises(UnusableInput, match="not an unchanged release"):
        update_from(copy, tmp_path / "x.zip")


def test_a_folder_that_is_no_release_is_refused(tmp_path):
    with pytest.raises(UnusableInput, match="can be updated"):
        update_from(tmp_path, packed(tmp_path / "new.zip"))
