"""Which files of a folder or archive count, and the notes on the others."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from gradsync.course.catalogue import find_course
from gradsync.submission import (
    SubmissionError,
    find_submissions,
    read_submission,
)
from gradsync.submission.reading import HAND_IN

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
def test_folders_and_archives_give_the_same_files(tmp_path, name, pack):
    submission = read_submission(pack(tmp_path / name, FILES), COURSE, phases=["phase1"])

    assert submission.name == "ada"
    assert submission.files == FILES
    assert submission.notes == ()


def test_a_missing_file_is_noted(tmp_path):
    submission = read_submission(as_folder(tmp_path / "ada", {LOADER: b"x = 1\n"}), COURSE)

    assert submission.files == {LOADER: b"x = 1\n"}
    others = COURSE.phases[1:]
    assert submission.notes == (f"missing: {TRAINER}", *(f"missing: {name}" for name in others))


@pytest.mark.parametrize(
    ("files", "holds"), [({}, "it is empty"), ({"report.pdf": b""}, f"it has report.pdf{HAND_IN}")]
)
def test_a_folder_without_any_file_of_the_course_is_unreadable(tmp_path, files, holds):
    (tmp_path / "ada").mkdir()
    submission = read_submission(as_folder(tmp_path / "ada", files), COURSE)

    assert submission.notes == (f"unreadable: ada has none of the course's files: {holds}",)


def test_loose_files_belong_to_the_first_phase_that_has_all_their_names(tmp_path):
    names = ("template_data_loader.py", "template_model_parallel.py")
    loose = as_folder(tmp_path / "ada", dict.fromkeys(names, b"x = 1\n"))

    assert set(read_submission(loose, COURSE).files) == {f"phase2/{name}" for name in names}


def test_loose_files_belong_to_the_requested_phase(tmp_path):
    loose = as_folder(tmp_path / "ada", {"template_trainer.py": b"x = 1\n"})

    asked = read_submission(loose, COURSE, phases=["phase2"])

    assert set(asked.files) == {"phase2/template_trainer.py"}


@pytest.mark.parametrize("pack", [as_folder, as_zip, as_tar])
def test_harmless_files_are_ignored_without_a_note(tmp_path, pack):
    innocent = ["README.md", "phase1/try.ipynb", "phase1/model.pt", ".git/config", ".DS_Store"]
    innocent += [f"{top}phase1/._template_trainer.py" for top in ("", "__MACOSX/")]
    innocent += ["phase1/.ipynb_checkpoints/a.py"]
    name = {as_folder: "ada", as_zip: "ada.zip", as_tar: "ada.tar.gz"}[pack]
    path = pack(tmp_path / name, {**FILES, **dict.fromkeys(innocent, b"\0")})

    submission = read_submission(path, COURSE, phases=["phase1"])

    assert submission.files == FILES
    assert submission.notes == ()


def test_modules_and_settings_are_named_in_one_line(tmp_path):
    more = {**FILES, "pytest.ini": b"", "phase1/torch.py": b"", "phase1/helpers.py": b""}
    submission = read_submission(as_folder(tmp_path / "ada", more), COURSE, phases=["phase1"])

    assert submission.files == FILES
    assert submission.notes == (
        "ignored: phase1/helpers.py, phase1/torch.py, pytest.ini (only the course's files count)",
    )


def test_in_a_learners_copy_settings_get_no_note():
    assert not any("ignored" in note for note in read_submission(COURSE.root, COURSE).notes)


@pytest.mark.parametrize("pack", [as_folder, as_zip, as_tar])
@pytest.mark.parametrize(
    "source",
    [
        "x = 'é'\r\n".encode("utf-8-sig"),
        "# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"),
        "#!/usr/bin/env python\n# vim: set fileencoding=gb18030 :\nx = '作业'\n".encode("gb18030"),
    ],
    ids=["byte order mark", "latin-1", "gb18030"],
)
def test_a_source_is_not_changed_whatever_its_encoding(tmp_path, pack, source):
    name = {as_folder: "ada", as_zip: "ada.zip", as_tar: "ada.tar.gz"}[pack]
    path = pack(tmp_path / name, {**FILES, TRAINER: source})

    assert read_submission(path, COURSE).files[TRAINER] == source


def test_a_byte_order_mark_and_another_encoding_are_refused(tmp_path):
    source = b"\xef\xbb\xbf# coding: latin-1\n"
    folder = as_folder(tmp_path / "ada", {**FILES, TRAINER: source})

    assert set(read_submission(folder, COURSE).files) == {LOADER}


@pytest.mark.parametrize(("name", "pack"), [("ADA.ZIP", as_zip), ("ADA.Tar.Gz", as_tar)])
def test_a_file_extension_may_be_in_capitals(tmp_path, name, pack):
    path = pack(tmp_path / name, FILES)

    assert find_submissions(tmp_path, COURSE) == [path]
    assert read_submission(path, COURSE).name == "ADA"
    assert read_submission(path, COURSE).files == FILES


def test_a_link_given_as_argument_is_followed(tmp_path):
    folder = as_folder(tmp_path / "ada", FILES)
    (tmp_path / "latest").symlink_to(folder)

    assert find_submissions(tmp_path / "latest", COURSE) == [folder]


def test_a_link_in_a_class_is_a_submission_that_cannot_be_read(tmp_path):
    as_folder(tmp_path / "class" / "ada", FILES)
    (tmp_path / "class" / "eve").symlink_to("ada")

    found = find_submissions(tmp_path / "class", COURSE)
    eve = read_submission(found[1], COURSE)

    assert [path.name for path in found] == ["ada", "eve"]
    assert eve.name == "eve"
    assert eve.files == {}
    assert eve.notes == ("unreadable: eve is a link",)


def test_a_class_with_a_loose_file_of_the_course_is_not_taken_for_one_submission(tmp_path):
    (tmp_path / "template_trainer.py").write_text("")
    as_folder(tmp_path / "ada", FILES)

    assert find_submissions(tmp_path, COURSE) == [tmp_path]
    as_folder(tmp_path / "bob", FILES)
    with pytest.raises(
        SubmissionError, match=r"template_trainer\.py lies beside 2 folders"
    ) as said:
        find_submissions(tmp_path, COURSE)
    assert "ada, bob" in str(said.value)


def test_a_folder_of_submissions_is_a_class(tmp_path):
    as_folder(tmp_path / "ada", FILES)
    as_zip(tmp_path / "bob.zip", FILES)
    (tmp_path / "roster.csv").write_text("")
    (tmp_path / ".hidden").mkdir()

    assert [p.name for p in find_submissions(tmp_path, COURSE)] == ["ada", "bob.zip"]


@pytest.mark.parametrize("name", ["carl.rar", "dora.py", "notes.txt", "emil.tar"])
def test_a_file_of_another_kind_in_a_class_is_unreadable_with_its_reason(tmp_path, name):
    as_folder(tmp_path / "ada", FILES)
    (tmp_path / name).write_bytes(b"")
    [_, other] = sorted(find_submissions(tmp_path, COURSE), key=lambda path: path.name == name)

    assert read_submission(other, COURSE).notes == (
        f"unreadable: {name} is not a folder, .zip or .tar.gz: pack the files again as a .zip",
    )


def test_a_submission_is_not_a_class(tmp_path):
    folder = as_folder(tmp_path / "ada", {LOADER: b"x = 1\n"})

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
