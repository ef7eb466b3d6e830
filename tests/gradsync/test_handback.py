"""Grades as files, whole or not at all."""

import csv
import json

import pytest
from report_samples import report, verdict

from gradsync.handback import folder_name, write_gradebook, write_report, write_whole


def test_a_report_is_written_as_json_and_html(tmp_path):
    folder = write_report(report(verdict()), tmp_path)

    assert folder == tmp_path / "ada"
    assert json.loads((folder / "report.json").read_text())["submission"] == "ada"
    assert "<html" in (folder / "report.html").read_text()


def test_the_gradebook_has_a_line_a_submission(tmp_path):
    path = write_gradebook([report(verdict()), report(verdict(), submission="bob")], tmp_path)

    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["submission"] for row in rows] == ["ada", "bob"]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\nb", "a\\b", "", "x" * 500, "ünï", "a b"])
def test_any_name_becomes_one_folder(tmp_path, name):
    folder = tmp_path / folder_name(name)
    folder.mkdir()

    assert folder.resolve().parent == tmp_path.resolve()


def test_a_write_that_fails_leaves_the_former_file(tmp_path):
    path = tmp_path / "grade"
    write_whole(path, "former")

    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "torn \ud800")
    assert path.read_text() == "former"
    assert [p.name for p in tmp_path.iterdir()] == ["grade"]
