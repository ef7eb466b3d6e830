"""Grading a class into a folder: finished grades are kept, however the grader ended."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from report_samples import report, verdict
from small_course import WRONG, write_course, write_submission

from gradsync.errors import GraderError
from gradsync.grading import tasks
from gradsync.grading.classes.entries import entries_at
from gradsync.grading.classes.grade_class import Execution, grade_class
from gradsync.grading.classes.tables import TableError
from gradsync.grading.store import FolderInUse
from gradsync.grading.tasks import in_processes

HELPERS = Path(__file__).parents[3] / "helpers"


class Class:
    """Three submissions and the folder of their grades; grading is faked and takes no time."""

    def __init__(self, root, monkeypatch):
        self.course = write_course(root / "course")
        self.folder = root / "class"
        self.out = root / "out"
        self.failing = {}  # name -> the error that the grader raises
        for name in ("ada", "bob", "cleo"):
            write_submission(self.folder / name)
        monkeypatch.setattr(tasks, "grade", self._fake_grade)

    def grade(self, **options):
        """Grade the class; return the names of those that were graded now."""
        return [o.report.submission for o in self.outcomes(**options) if o.is_new]

    def outcomes(self, only="", **options):
        paths = [self.folder / only]
        entries = entries_at(paths, self.course, self.out, "gradsync grade")
        return grade_class(entries, self.course, ["phase1"], self.out, **options)

    def rows(self):
        text = (self.out / "gradebook.csv").read_text(encoding="utf-8-sig")
        rows = csv.DictReader(text.splitlines())
        return {row["submission"]: row for row in rows}

    def page(self, name):
        return (self.out / name / "report.html").read_text()

    def seeds(self):
        return {json.loads(path.read_text())["seed"] for path in self.out.glob("*/report.json")}

    def _fake_grade(self, submission, _course, *, seed, **_options):
        if submission.name in self.failing:
            raise self.failing[submission.name]
        third = verdict(exercise="phase1/double", points=50 / 3, max_points=50.0)
        return report(third, third, submission=submission.name, seed=seed)


@pytest.fixture
def klass(tmp_path, monkeypatch):
    return Class(tmp_path, monkeypatch)


def test_finished_grades_and_their_gradebook_are_kept(klass):
    first = klass.grade()
    book = (klass.out / "gradebook.csv").read_bytes()
    second = klass.grade()

    assert first == ["ada", "bob", "cleo"]
    assert second == []
    assert (klass.out / "gradebook.csv").read_bytes() == book


def test_the_page_of_the_class_shows_all_that_were_ever_graded(klass):
    klass.failing = {"bob": GraderError("no space left")}
    klass.grade()
    list(klass.outcomes("cleo", fresh=True))
    page = (klass.out / "class.html").read_text()

    assert 'href="ada/report.html"' in page
    assert 'href="cleo/report.html"' in page
    assert "no space left" in page


def test_a_stopped_run_leaves_a_page_of_what_was_graded(klass):
    outcomes = klass.outcomes()
    next(outcomes)
    outcomes.close()
    page = (klass.out / "class.html").read_text()

    assert "ada/report.html" in page
    assert "bob/report.html" not in page


def test_a_changed_submission_is_graded_again(klass):
    klass.grade()
    write_submission(klass.folder / "bob", WRONG)

    assert klass.grade() == ["bob"]


def test_an_added_submission_gets_a_line(klass):
    klass.grade()
    write_submission(klass.folder / "abe")

    assert klass.grade() == ["abe"]
    assert list(klass.rows()) == ["abe", "ada", "bob", "cleo"]


def test_an_unreadable_submission_is_graded_again_when_its_note_changes(klass):
    (klass.folder / "dan.zip").write_bytes(b"no zip")
    klass.grade()
    (klass.folder / "dan.zip").write_bytes(b"")
    unchanged = klass.grade()
    write_submission(klass.folder / "dan")
    (klass.folder / "dan.zip").unlink()

    assert unchanged == []
    assert klass.grade() == ["dan"]


@pytest.mark.parametrize("file", ["tests/hidden/phase1/test_trainer.py", "phase1/exercises.toml"])
def test_a_changed_course_grades_all_again(klass, file):
    klass.grade()
    path = klass.course.root / file
    path.write_text(path.read_text() + "\n# changed\n")

    assert klass.grade() == ["ada", "bob", "cleo"]


def test_the_seed_is_the_same_for_all_and_for_later_runs(klass):
    klass.grade()
    seeds = klass.seeds()
    write_submission(klass.folder / "bob", WRONG)
    klass.grade()

    assert len(seeds) == 1
    assert klass.seeds() == seeds


def test_a_new_seed_grades_all_again_and_is_stored(klass):
    klass.grade(seed=1)

    assert klass.grade(seed=2) == ["ada", "bob", "cleo"]
    assert klass.grade() == []
    assert klass.seeds() == {2}


def test_fresh_grades_all_again_with_a_new_seed(klass):
    klass.grade(seed=2**48)  # this seed is never drawn

    assert klass.grade(fresh=True) == ["ada", "bob", "cleo"]
    assert klass.seeds() != {2**48}


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"seed": "5"}', '{"seed": true}'])
def test_a_damaged_seed_file_gets_a_new_seed(klass, torn):
    klass.grade()
    (klass.out / ".grading.json").write_text(torn)

    assert klass.grade() == ["ada", "bob", "cleo"]
    assert len(klass.seeds()) == 1


@pytest.mark.parametrize(
    "breaks",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"file"', b'"earlier"')),
    ],
)
def test_an_incomplete_report_is_graded_again(klass, breaks):
    klass.grade()
    breaks(klass.out / "bob" / "report.json")

    assert klass.grade() == ["bob"]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (GraderError("pytest broke"), "pytest broke"),
        (RuntimeError("unthought of"), "RuntimeError: unthought of"),
    ],
)
def test_a_failure_of_the_grader_affects_one_submission_only(klass, error, problem):
    klass.failing = {"bob": error}
    lost = {o.report.submission: o.report.problem for o in klass.outcomes() if o.report.problem}

    assert lost == {"bob": problem}
    assert [row["status"] for row in klass.rows().values()] == ["graded", "grader-failed", "graded"]
    assert klass.rows()["bob"]["score"] == ""


def test_the_traceback_of_an_unexpected_failure_is_kept(klass):
    klass.failing = {"bob": RuntimeError("unthought of")}
    [text] = [o.report.traceback for o in klass.outcomes() if o.report.problem]

    assert "_fake_grade" in text


def test_a_submission_on_which_the_grader_failed_is_tried_again(klass):
    klass.failing = {"bob": GraderError()}
    klass.grade()
    klass.failing = {}

    assert klass.grade() == ["bob"]
    assert klass.rows()["bob"]["status"] == "graded"


def test_the_gradebook_has_a_line_as_soon_as_a_submission_is_graded(klass):
    outcomes = klass.outcomes()
    seen = [
        (next(outcomes).report.submission, [row["status"] for row in klass.rows().values()])
        for _ in range(3)
    ]

    assert seen == [
        ("ada", ["graded", "not-graded", "not-graded"]),
        ("bob", ["graded", "graded", "not-graded"]),
        ("cleo", ["graded", "graded", "graded"]),
    ]


def test_a_line_stays_until_its_submission_is_graded_again(klass):
    klass.grade()
    klass.failing = {"ada": GraderError()}
    outcomes = klass.outcomes(fresh=True)
    next(outcomes)

    assert [row["status"] for row in klass.rows().values()] == ["grader-failed", "graded", "graded"]


@pytest.mark.parametrize("fresh", [False, True])
def test_grading_one_submission_keeps_the_lines_and_the_seed_of_the_class(klass, fresh):
    klass.failing = {"cleo": GraderError()}  # it has a line but no report
    klass.grade()
    rows, seeds = klass.rows(), klass.seeds()
    klass.failing = {}
    write_submission(klass.folder / "bob", WRONG)
    klass.grade(only="bob", fresh=fresh)

    assert klass.rows() == rows
    assert klass.seeds() == seeds
    assert klass.grade() == ["cleo"]


def test_a_seed_for_one_submission_is_not_stored_for_the_class(klass):
    klass.grade()
    klass.grade(only="bob", seed=2**48)

    assert klass.grade() == ["bob"]
    assert len(klass.seeds()) == 1


def test_a_submission_whose_folder_staff_removed_has_no_line_any_more(klass):
    klass.grade()
    shutil.rmtree(klass.out / "cleo")
    klass.grade(only="bob")

    assert list(klass.rows()) == ["ada", "bob"]


def test_a_folder_that_staff_remove_during_a_run_does_not_stop_it(klass):
    klass.grade()
    outcomes = klass.outcomes("bob", fresh=True)
    next(outcomes)
    shutil.rmtree(klass.out / "cleo")

    assert list(outcomes) == []
    assert not (klass.out / "cleo").exists()


@pytest.mark.parametrize("text", [b"name;points\nada;3\n", b"\xff\xfe\x00"])
def test_the_gradebook_is_written_and_never_read(klass, text):
    klass.grade()
    book = (klass.out / "gradebook.csv").read_bytes()
    (klass.out / "gradebook.csv").write_bytes(text)

    assert klass.grade() == []
    assert (klass.out / "gradebook.csv").read_bytes() == book


def test_a_page_is_made_again_from_the_stored_report(klass):
    klass.grade()
    page = klass.page("ada")
    (klass.out / "ada" / "report.html").unlink()

    assert klass.grade() == []
    assert klass.page("ada") == page


def test_only_pages_whose_corrections_changed_are_written_again(klass):
    klass.grade()
    before = {name: (klass.out / name / "report.html").stat().st_ino for name in ("ada", "bob")}
    lines = ["submission,exercise,points,reason,by", "ada,phase1/double,2,appeal,Kim"]
    (klass.out / "overrides.csv").write_text("\n".join(lines))
    klass.grade()
    after = {name: (klass.out / name / "report.html").stat().st_ino for name in ("ada", "bob")}

    assert [name for name in before if before[name] != after[name]] == ["ada"]


def test_overrides_are_kept_through_regrading_and_shown_on_the_page(klass):
    klass.grade()
    lines = ["submission,exercise,points,reason,by", "ada,phase1/double,2,appeal,Kim"]
    (klass.out / "overrides.csv").write_text("\n".join(lines))
    klass.grade()
    unchanged = (klass.rows()["ada"]["score"], klass.page("ada").count("appeal"))
    klass.grade(fresh=True)

    assert unchanged == ("2.0", 1)
    assert (klass.rows()["ada"]["score"], klass.page("ada").count("appeal")) == unchanged
    assert "by Kim: appeal" in klass.rows()["ada"]["overrides"]


def test_a_withdrawn_override_leaves_the_page_and_the_gradebook(klass):
    klass.grade()
    page, rows = klass.page("ada"), klass.rows()
    overrides = klass.out / "overrides.csv"
    overrides.write_text("submission,exercise,points,reason,by\nada,phase1/double,2,x,y\n")
    klass.grade()
    overrides.unlink()
    klass.grade()

    assert klass.page("ada") == page
    assert klass.rows() == rows


def test_bad_overrides_stop_the_run_before_anything_is_graded(klass):
    klass.out.mkdir()
    (klass.out / "overrides.csv").write_text("submission,exercise,points,reason,by\na,b,many,x,y")

    with pytest.raises(TableError, match="line 2: points must be a number"):
        klass.grade()
    assert not list(klass.out.glob("*/report.json"))


def test_a_roster_is_kept_and_lists_people_who_handed_in_nothing(klass, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name,email\nada,Ada,\nzoe,Zoë,\n")
    klass.grade(roster=roster)
    roster.unlink()
    klass.grade(only="bob", fresh=True)

    assert klass.rows()["ada"]["name"] == "Ada"
    assert (klass.rows()["zoe"]["status"], klass.rows()["zoe"]["name"]) == ("missing", "Zoë")


def test_a_roster_with_a_mistake_does_not_replace_the_previous_one(klass, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name,email\nada,Ada,\n")
    klass.grade(roster=roster)
    roster.write_text("id,name,email\n,Ada,\n")

    with pytest.raises(TableError, match="the value of 'id' is missing"):
        klass.grade(roster=roster)
    klass.grade()
    assert klass.rows()["ada"]["name"] == "Ada"


def test_a_roster_without_a_granted_extension_does_not_replace_the_one_that_has_it(klass, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name,email\nada,Ada,\n")
    klass.grade(roster=roster)
    (klass.out / "roster.csv").write_text("id,name,email,days\nada,Ada,,2\n")

    with pytest.raises(TableError, match=r"does not have days of Ada .* Leave out --roster"):
        klass.grade(roster=roster)
    roster.write_text("id,name,email,days\nada,Ada,,3\n")
    klass.grade(roster=roster)
    assert "3" in (klass.out / "roster.csv").read_text()


def test_a_person_who_hands_in_later_is_not_missing_any_more(klass, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name,email\n17,Zoë Xu,\n")
    klass.grade(roster=roster)
    before = set(klass.rows())
    write_submission(klass.folder / "zoe xu")
    klass.grade()

    assert before - set(klass.rows()) == {"17"}
    assert klass.rows()["zoe xu"]["id"] == "17"


def test_warnings_on_overrides_are_given_once_at_the_end(klass):
    klass.out.mkdir()
    lines = ["submission,exercise,points,reason,by", "eve,phase1/double,2,appeal,Kim"]
    (klass.out / "overrides.csv").write_text("\n".join(lines))
    warnings = []
    klass.grade(execution=Execution(on_written=lambda written: warnings.extend(written.warnings)))

    assert len(warnings) == 1
    assert "no submission 'eve'" in warnings[0]


def test_several_processes_grade_a_class_as_one_does(klass, monkeypatch):
    monkeypatch.undo()  # the processes really grade
    write_submission(klass.folder / "bob", WRONG)
    options = {"sandboxed": False, "seed": 3}
    klass.grade(**options)
    rows = klass.rows()
    klass.out = klass.out.with_name("parallel")
    begun = []
    execution = Execution(in_processes(2), parallel=1, on_begin=begun.append)

    assert sorted(klass.grade(execution=execution, **options)) == ["ada", "bob", "cleo"]
    assert klass.rows() == rows
    assert begun == ["ada", "bob", "cleo"]
    assert klass.seeds() == {3}


def test_one_grader_at_a_time_writes_to_a_folder(klass):
    first = klass.outcomes()
    next(first)

    with pytest.raises(FolderInUse, match="Another grader"):
        next(klass.outcomes())
    first.close()
    assert len(klass.grade()) == 2


def test_submissions_with_the_same_name_are_numbered(klass):
    (klass.folder / "ada.zip").write_bytes(b"no zip")

    assert klass.grade() == ["ada", "ada-2", "bob", "cleo"]


def test_a_submission_can_have_the_gradebooks_name(klass):
    write_submission(klass.folder / "gradebook.csv")

    assert klass.grade() == ["ada", "bob", "cleo", "gradebook.csv"]
    assert list(klass.rows()) == ["ada", "bob", "cleo", "gradebook.csv"]


@pytest.mark.slow
def test_a_run_killed_at_any_step_is_completed_with_the_same_gradebook(klass):
    program = [sys.executable, HELPERS / "mortal_grader.py", klass.course.root, klass.folder]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout

    undisturbed, *deaths = map(json.loads, said.splitlines())
    assert {len(death["finished"]) for death in deaths} == {0, 1, 2, 3}
    assert {death["book"] for death in deaths} == {undisturbed}
    assert all(set(d["finished"]).isdisjoint(d["graded"]) for d in deaths)
    assert [death["left"] for death in deaths if death["left"]] == []


def test_other_submissions_of_the_folder_are_reported_once(klass):
    kept = []
    klass.grade()
    list(klass.outcomes(only="bob", execution=Execution(on_kept=kept.append)))

    assert kept == [["ada", "cleo"]]
