"""`gradsync report`: a folder of grades is rendered again without grading."""

import csv
import subprocess
import sys

import pytest
from report_samples import report, verdict
from small_course import write_course

from gradsync.errors import UnusableInput
from gradsync.grading.pages import render_again, write_class
from gradsync.grading.store import GradeStore, course_of

TESTS = [f"phase1/trainer::test_a_number_is_doubled[{most}]" for most in (10, 100)]
OLD = '{"submission": "ada", "score": 1.0, "max_score": 1.0, "tests": [], "made_from": null}'


class Folder:
    """The grades of two learners, from the time when each test had 1 point."""

    def __init__(self, root):
        self.course = write_course(root / "course")
        self.out = root / "out"
        self.warnings = []
        store = GradeStore(self.out)
        for name, status in (("ada", "passed"), ("bob", "failed")):
            tests = [
                verdict("double", status if id == TESTS[1] else "passed", id=id, max_points=1.0)
                for id in TESTS
            ]
            store.save(report(*tests, submission=name))
        write_class(store, self.course)

    def render(self, name=""):
        return render_again(self.out / name, self.course, self.warnings.append)

    def scores(self):
        rows = csv.DictReader((self.out / "gradebook.csv").read_text("utf-8-sig").splitlines())
        return {row["submission"]: row["score"] for row in rows}

    def files(self):
        return {path: path.read_bytes() for path in self.out.rglob("*.*") if path.is_file()}


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_all_that_is_rendered_comes_from_the_records(folder):
    folder.render()
    before = folder.files()
    for path in [*folder.out.rglob("*.html"), folder.out / "gradebook.csv"]:
        path.unlink()
    written = folder.render()

    assert (written.submissions, written.pages) == (2, 2)
    assert folder.files() == before


def test_the_current_points_and_titles_of_the_tests_are_used(folder):
    before = folder.scores()
    folder.render()

    assert before == {"ada": "2.0", "bob": "1.0"}
    assert folder.scores() == {"ada": "100.0", "bob": "50.0"}
    assert "A number comes back twice as large." in (folder.out / "bob" / "report.html").read_text()
    assert folder.warnings == []


def test_grades_of_other_tests_keep_their_points(folder):
    suite = folder.course.root / "tests/hidden/phase1/test_trainer.py"
    suite.write_text(suite.read_text().replace("[10, 100]", "[10, 1000]"))
    folder.render()

    assert folder.scores() == {"ada": "2.0", "bob": "1.0"}
    [warning] = folder.warnings
    assert "keep their points: ada, bob" in warning


def test_corrections_are_shown(folder):
    folder.render()
    lines = ["submission,exercise,points,reason,by", "ada,phase1/double,7,appeal,Kim"]
    (folder.out / "overrides.csv").write_text("\n".join(lines))
    folder.render()

    assert folder.scores()["ada"] == "7.0"
    assert "appeal" in (folder.out / "ada" / "report.html").read_text()


def test_one_submission_can_be_rendered_alone(folder):
    folder.render()
    pages = {name: folder.out / name / "report.html" for name in ("ada", "bob")}
    before = {name: page.stat().st_ino for name, page in pages.items()}
    folder.render("ada")

    assert [name for name, page in pages.items() if page.stat().st_ino != before[name]] == ["ada"]


def test_an_extension_is_on_the_learners_page(folder):
    folder.render()
    lines = ["id,name,email,days", "ada,Ada,ada@example.org,2"]
    (folder.out / "roster.csv").write_text("\n".join(lines))
    folder.render()

    page = (folder.out / "ada" / "report.html").read_text()
    assert "Granted for handing in: 2 more days." in page


def test_the_settings_of_the_course_that_graded_count_in_any_folder(folder, tmp_path, monkeypatch):
    GradeStore(folder.out).remember(folder.course.root)
    monkeypatch.chdir(tmp_path)

    assert course_of(folder.out).root == folder.course.root
    assert course_of(folder.out / "ada").root == folder.course.root


def test_a_course_that_is_gone_is_named(folder, tmp_path):
    GradeStore(folder.out).remember(tmp_path / "moved")
    folder.render()

    [warning] = folder.warnings
    assert f"made in {tmp_path / 'moved'}, which is gone" in warning


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "has no grades"), ("{", "are damaged"), (OLD, "an earlier version")],
)
def test_a_folder_without_grades_that_can_be_read_is_refused(folder, content, problem):
    for name in ("ada", "bob"):
        path = folder.out / name / "report.json"
        path.unlink() if content is None else path.write_text(content)

    with pytest.raises(UnusableInput, match=problem):
        folder.render()


def test_the_command_ends_with_status_2_for_a_folder_without_grades(folder, tmp_path):
    command = [sys.executable, "-m", "gradsync", "report", tmp_path]
    done = subprocess.run(
        command, check=False, cwd=folder.course.root, capture_output=True, text=True
    )

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
