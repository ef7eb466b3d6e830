"""What counts of a folder or archive, and what is said of the rest."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from gradsync.course import find_course
from gradsync.submission import (
    MAX_FILE,
    SubmissionError,
    find_submissions,
    read_submission,
)

COURSE = find_course(Path(__file__).parent)
LOADER, TRAINER = "phase1/template_data_loader.py", "phase1/template_trainer.py"
FILES = {LOADER: b"loader = 1\n", TRAINER: b"trainer = 1\n"}


def as_folder(path, files):
    for name, content in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return path


def as_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def as_tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("name", "pack"), [("ada", as_folder), ("ada.zip", as_zip), ("ada.tar.gz", as_tar)]
)
def test_folders_and_archives_are_read_alike(tmp_path, name, pack):
    submission = read_submission(pack(tmp_path / name, FILES), COURSE, phases=["phase1"])

    assert submission.name == "ada"
    assert submission.files == FILES
    assert submission.notes == ()


def test_the_files_may_lie_directly_in_the_folder(tmp_path):
    loose = {name.removeprefix("phase1/"): content for name, content in FILES.items()}

    assert read_submission(as_folder(tmp_path / "ada", loose), COURSE).files == FILES


@pytest.mark.parametrize("pack", [as_zip, as_tar])
def test_an_archive_may_hold_the_folder_itself(tmp_path, pack):
    ending = ".zip" if pack is as_zip else ".tar.gz"
    wrapped = {f"ada/{name}": content for name, content in FILES.items()}

    assert read_submission(pack(tmp_path / f"x{ending}", wrapped), COURSE).files == FILES


def test_a_missing_file_is_noted(tmp_path):
    submission = read_submission(as_folder(tmp_path / "ada", {LOADER: b""}), COURSE)

    assert submission.files == {LOADER: b""}
    assert submission.notes == (f"missing: {TRAINER}", "missing: phase2")


def test_loose_files_belong_to_the_first_phase_that_has_all_their_names(tmp_path):
    names = ("template_data_loader.py", "template_model_parallel.py")
    loose = as_folder(tmp_path / "ada", dict.fromkeys(names, b""))

    assert set(read_submission(loose, COURSE).files) == {f"phase2/{name}" for name in names}


def test_loose_files_are_those_of_the_phase_that_is_asked_for(tmp_path):
    loose = as_folder(tmp_path / "ada", {"template_trainer.py": b""})

    asked = read_submission(loose, COURSE, phases=["phase2"])

    assert set(asked.files) == {"phase2/template_trainer.py"}


def test_nothing_but_the_contracts_files_counts(tmp_path):
    more = {**FILES, "conftest.py": b"", "phase1/torch.py": b"", "phase1/pytest.ini": b""}

    assert read_submission(as_folder(tmp_path / "ada", more), COURSE).files == FILES


def test_a_link_is_not_followed(tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("secret")
    folder = as_folder(tmp_path / "ada", {LOADER: b""})
    (folder / TRAINER).symlink_to(secret)

    assert set(read_submission(folder, COURSE).files) == {LOADER}


def test_a_huge_file_is_refused_by_name(tmp_path):
    huge = {**FILES, TRAINER: b"#" * (MAX_FILE + 1)}
    submission = read_submission(as_folder(tmp_path / "ada", huge), COURSE, phases=["phase1"])

    assert set(submission.files) == {LOADER}
    assert submission.notes[0].startswith(f"refused: {TRAINER}")


@pytest.mark.parametrize("name", ["ada.zip", "ada.tar.gz"])
@pytest.mark.parametrize("content", [b"", b"no archive at all", b"PK\x03\x04 torn"])
def test_a_broken_archive_is_a_submission_with_a_note(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    submission = read_submission(path, COURSE)

    assert submission.files == {}
    assert submission.notes[0].startswith(f"unreadable: {name}")


@pytest.mark.parametrize("pack", [as_zip, as_tar])
def test_a_truncated_archive_is_a_submission_with_a_note(tmp_path, pack):
    path = pack(tmp_path / ("ada.zip" if pack is as_zip else "ada.tar.gz"), FILES)
    path.write_bytes(path.read_bytes()[:-30])
    submission = read_submission(path, COURSE)

    assert submission.files == {}
    assert "unreadable" in submission.notes[0]


def test_a_folder_of_submissions_is_a_class(tmp_path):
    as_folder(tmp_path / "ada", FILES)
    as_zip(tmp_path / "bob.zip", FILES)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / ".hidden").mkdir()

    assert [p.name for p in find_submissions(tmp_path, COURSE)] == ["ada", "bob.zip"]


def test_a_submission_is_no_class(tmp_path):
    folder = as_folder(tmp_path / "ada", {LOADER: b""})

    assert find_submissions(folder, COURSE) == [folder]


@pytest.mark.parametrize("kind", ["nothing", "text", "empty"])
def test_a_path_without_a_submission_is_refused_by_name(tmp_path, kind):
    path = tmp_path / kind
    if kind == "text":
        path.write_text("")
    elif kind == "empty":
        path.mkdir()

    with pytest.raises(SubmissionError, match=kind):
        find_submissions(path, COURSE)
