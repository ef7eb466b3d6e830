"""Writing grades to files, atomically."""

import pytest

from gradsync.grading.output_files import (
    FAILURE,
    folder_name,
    read_failure,
    remove_leftovers,
    write_failure,
    write_report,
    write_whole,
)


def test_a_report_is_written_in_the_folder_of_its_submission(tmp_path):
    folder = write_report("ada", "the page", "the content", tmp_path)

    assert folder == tmp_path / "ada"
    assert (folder / "report.json").read_text() == "the content"
    assert (folder / "report.html").read_text() == "the page"


def test_a_report_replaces_an_earlier_failure(tmp_path):
    write_failure("ada", "out of memory", tmp_path)
    failure = read_failure(tmp_path / "ada" / FAILURE)
    write_report("ada", "", "", tmp_path)

    assert failure == ("ada", "out of memory")
    assert read_failure(tmp_path / "ada" / FAILURE) is None


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "a\nb", "a\\b", "", "x" * 500, "ü" * 200, "\n" * 90, "ünï", "a b"]
)
def test_any_name_becomes_one_folder(tmp_path, name):
    folder = tmp_path / folder_name(name)
    folder.mkdir()

    assert folder.resolve().parent == tmp_path.resolve()


def test_a_write_that_fails_leaves_the_previous_file(tmp_path):
    path = tmp_path / "grade"
    write_whole(path, "previous")

    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "torn \ud800")
    assert path.read_text() == "previous"
    assert [p.name for p in tmp_path.iterdir()] == ["grade"]


@pytest.mark.parametrize("names", ["a/b a%2Fb", "g %67", "x\n x", f"{'x' * 300} {'x' * 301}"])
def test_two_names_never_share_a_folder(names):
    one, other = names.split(" ")

    assert folder_name(one) != folder_name(other)


@pytest.mark.parametrize("name", ["gradebook.csv", "Class.html", "roster.csv", "overrides.csv"])
def test_no_submission_folder_has_the_name_of_a_file_of_the_class(name):
    assert folder_name(name) != name
    assert folder_name(f"{name}2") == f"{name}2"


def test_only_temporary_files_of_a_killed_grader_are_removed(tmp_path):
    folder = write_report("ada", "", "", tmp_path)
    kept = {*tmp_path.rglob("*"), tmp_path / ".grading.lock", folder / ".report.json.swp"}
    for path in (tmp_path / ".grading.lock", folder / ".report.json.swp"):
        path.touch()
    for name in (
        ".gradebook.csv.0a1b2c3d",
        ".class.html.0a1b2c3d",
        "ada/.report.json.0a1b2c3d",
        "ada/.report.html.01234567",
    ):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)

    assert set(tmp_path.rglob("*")) == kept
