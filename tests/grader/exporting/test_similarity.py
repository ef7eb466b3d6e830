"""Folders for JPlag and Dolos, read by the rules of their documentation."""

import csv

import pytest
from learners_copy import SOLUTION, write_whole_course

from gradsync.exporting.similarity import similarity_files
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
    """Return {author: content}: each file that info.csv names, relative to it."""
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
