"""Folders for JPlag and Dolos, read by the rules of their documentation."""

import csv
import zipfile

import pytest
from download_samples import METADATA
from learners_copy import SOLUTION, write_whole_course
from small_course import RIGHT, WRONG, write_course

from gradsync.exporting.similarity import similarity_files, submissions_to_compare
from gradsync.submission import Submission

PATH = "phase1/template_trainer.py"
NAMES = {"ada": "ada", "%3D1+1": "=1+1", "base-code": "base-code", "Ödön, Ő": "Ödön, Ő"}


@pytest.fixture
def course(tmp_path):
    return write_whole_course(tmp_path / "course")


def jplag(files):
    """Return the files of each submission; each is a child of the root folder."""
    found = {}
    for path, content in files.items():
        if path.startswith("submissions/"):
            _, name, inner = path.split("/", 2)
            found.setdefault(name, {})[inner] = content
    return found


def dolos(files, folder):
    """Return {author: content} of the files in info.csv, whose paths are relative to info.csv."""
    rows = csv.DictReader(files[f"dolos/{folder}/info.csv"].decode().splitlines())
    return {row["full_name"]: files[f"dolos/{folder}/{row['filename']}"] for row in rows}


def test_both_tools_get_every_submission(course):
    given = {
        folder: Submission(name, {PATH: f"# {name}\n".encode()}) for folder, name in NAMES.items()
    }

    files, unchanged = similarity_files(given, course)

    compared = {name: content[PATH] for name, content in jplag(files).items()}
    assert {name: compared[name] for name in NAMES} == {
        folder: f"# {name}\n".encode() for folder, name in NAMES.items()
    }
    assert list(dolos(files, "phase1-template_trainer")) == ["ada", "'=1+1", "base-code", "Ödön, Ő"]
    assert unchanged == []


def test_the_template_is_the_base_code_even_if_a_submission_has_its_name(course):
    given = {"base-code": Submission("base-code", {PATH: b"mine"})}

    files, _ = similarity_files(given, course)

    [base] = jplag(files).keys() - given.keys()
    assert b"NotImplementedError" in jplag(files)[base][PATH]
    assert f"--base-code submissions/{base} submissions\n" in files["README.txt"].decode()


def test_unchanged_templates_are_left_out(course):
    template = jplag(similarity_files({}, course)[0])["base-code"][PATH]
    given = {"idle": Submission("idle", {PATH: template}), "ada": Submission("ada", {PATH: b"1"})}

    files, unchanged = similarity_files(given, course)

    assert unchanged == ["idle"]
    assert set(jplag(files)) == {"ada", "base-code"}


def test_no_solution_is_in_the_folders(course):
    files, _ = similarity_files({"ada": Submission("ada", {PATH: b"1"})}, course)

    assert SOLUTION.encode() not in files.values()
    assert [path for path, content in files.items() if b"secret" in content] == []


def pack(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(PATH, source)


def write_download(kind, folder):
    """Write a download of two learners, ada and bob, as a platform names its files."""
    if kind == "canvas":
        pack(folder / "ada_17_500_work.zip", RIGHT)
        (folder / "bob_LATE_18_501_template_trainer-1.py").write_text(WRONG)
        (folder / "bob_LATE_18_502_notes.txt").write_text("hello")
    elif kind == "moodle":
        pack(folder / "ada_900_assignsubmission_file_" / "work.zip", RIGHT)
        pack(folder / "bob_901_assignsubmission_file_" / "my.zip", WRONG)
    else:
        for name, source in {"submission_1": RIGHT, "submission_2": WRONG}.items():
            (folder / name).mkdir(parents=True)
            (folder / name / "template_trainer.py").write_text(source)
        names = {"submission_1": "ada", "submission_2": "bob"}
        rows = [f"{key}:\n  :submitters:\n  - :name: {name}" for key, name in names.items()]
        (folder / "submission_metadata.yml").write_text("\n".join(rows))


@pytest.mark.parametrize("kind", ["canvas", "moodle", "gradescope"])
@pytest.mark.parametrize("form", ["folder", "folder around it", "zip"])
def test_submissions_are_found_and_named_as_for_grading(tmp_path, kind, form):
    around = tmp_path / "around"
    folder = around / "assignment_77_export"
    write_download(kind, folder)
    path = {"folder": folder, "folder around it": around, "zip": tmp_path / "class.zip"}[form]
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        for file in filter(lambda each: each.is_file(), around.rglob("*")):
            archive.write(file, file.relative_to(around))

    read = submissions_to_compare(path, write_course(tmp_path / "course"), tmp_path / "to")

    sources = {name: submission.files[PATH].decode() for name, submission in read.items()}
    assert sources == {"ada": RIGHT, "bob": WRONG}


def test_the_submission_of_a_group_is_compared_once(tmp_path):
    write_download("gradescope", tmp_path / "class")
    for number, name in enumerate(("submission_101", "submission_102"), 1):
        (tmp_path / f"class/submission_{number}").rename(tmp_path / "class" / name)
    (tmp_path / "class/submission_metadata.yml").write_text(METADATA)

    read = submissions_to_compare(tmp_path / "class", write_course(tmp_path / "c"), tmp_path / "to")

    assert set(read) == {"Ada Lovelace", "Bob and Cleo"}
