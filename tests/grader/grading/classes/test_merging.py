"""A class that is divided among machines gets the same grades as an undivided class."""

import subprocess
import sys

import pytest
from report_samples import report, verdict
from small_course import RIGHT, WRONG, write_course, write_submission

from gradsync.errors import UnusableInput
from gradsync.grading import tasks
from gradsync.grading.classes.entries import entries_at
from gradsync.grading.classes.grade_class import grade_class
from gradsync.grading.classes.merging import Shard, merge, read_shard, shared_seed
from gradsync.grading.classes.regrading import COLUMNS
from gradsync.grading.classes.results import read_class
from gradsync.grading.store import FolderInUse, GradeStore
from gradsync.records import Report

NAMES = ("ada", "bob", "cleo", "dan", "eve")


def fake_grade(submission, _course, *, seed, **_options):
    """Give all points for the right source."""
    right = submission.files["phase1/template_trainer.py"] == RIGHT.encode()
    test = verdict(
        "double", "passed" if right else "failed", points=100.0 * right, max_points=100.0
    )
    return report(test, submission=submission.name, seed=seed)


class Class:
    """Five submissions; two of them are wrong. Grading is faked and takes no time."""

    def __init__(self, root):
        self.root = root
        self.course = write_course(root / "course")
        for number, name in enumerate(NAMES):
            write_submission(root / "class" / name, WRONG if number % 2 else RIGHT)
        self.warnings = []

    def entries(self):
        return entries_at([self.root / "class"], self.course, self.root / "x", "gradsync grade")

    def grade(self, out, shard=None, seed=3):
        members = self.entries()
        entries = shard.part(members) if shard else members
        options = {"seed": seed, "members": members}
        list(grade_class(entries, self.course, ["phase1"], self.root / out, **options))

    def merge(self, *folders):
        paths = [self.root / folder for folder in folders]
        return merge(paths, self.course, self.root / "grades", self.warnings.append)

    def book(self, out):
        return (self.root / out / "gradebook.csv").read_text("utf-8-sig")


@pytest.fixture
def klass(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "grade", fake_grade)
    return Class(tmp_path)


def test_shards_are_disjoint_and_make_up_the_class(klass):
    entries = klass.entries()
    parts = [Shard(number, 3).part(entries) for number in (1, 2, 3)]

    assert sorted(entry.name for part in parts for entry in part) == list(NAMES)
    assert [len(part) for part in parts] == [2, 2, 1]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "1", "a/b", "1/3/5", "-1/3"])
def test_a_shard_that_is_not_a_part_is_refused(text):
    with pytest.raises(UnusableInput, match="K from 1 to N"):
        read_shard(text)


def test_the_seed_of_shards_depends_on_the_course_and_all_names(klass):
    entries = klass.entries()
    seeds = {shared_seed(made, part) for made in "ab" for part in (entries, entries[1:])}

    assert len(seeds) == 4
    assert shared_seed("a", entries) == shared_seed("a", entries[::-1])


def test_merged_shards_have_the_gradebook_of_an_undivided_class(klass):
    klass.grade("whole")
    for number in (1, 2):
        klass.grade(f"shard-{number}", Shard(number, 2))

    assert klass.merge("shard-1", "shard-2").submissions == 5
    assert klass.book("grades") == klass.book("whole")
    page = (klass.root / "grades" / "class.html").read_text()
    assert all(f'href="{name}/report.html"' in page for name in NAMES)
    assert GradeStore(klass.root / "grades").seed == 3
    assert klass.warnings == []


def test_the_latest_grade_of_a_submission_counts(klass):
    klass.grade("first")
    write_submission(klass.root / "class" / "ada", WRONG)
    klass.grade("second")
    klass.merge("second", "first")

    assert klass.book("grades") == klass.book("second")
    assert klass.warnings == ["The latest of several grades counts for ada."]


def test_a_failure_of_the_grader_is_merged_too(klass):
    klass.grade("shard-1", Shard(1, 5))
    GradeStore(klass.root / "shard-1").save(Report("bob", 3, 0.0, (), problem="out of memory"))
    klass.merge("shard-1")

    seen = read_class(GradeStore(klass.root / "grades"), klass.course).results
    assert {r.submission: r.status for r in seen[:2]} == {"ada": "graded", "bob": "grader-failed"}


def test_shards_with_different_seeds_are_warned_of(klass):
    for number in (1, 2):
        klass.grade(f"shard-{number}", Shard(number, 2), seed=number)
    klass.merge("shard-1", "shard-2")

    assert "different seeds" in klass.warnings[0]


def test_a_roster_and_overrides_are_merged_if_there_are_none_yet(klass):
    klass.grade("shard-1", Shard(1, 5))
    (klass.root / "shard-1" / "roster.csv").write_text("id,name,email\nada,Ada,\nzoe,Zoe,\n")
    klass.merge("shard-1")

    assert "zoe,,,,missing" in klass.book("grades")


def test_the_submissions_of_an_absent_shard_are_not_called_missing(klass):
    klass.grade("shard-1", Shard(1, 2))
    (klass.root / "shard-1" / "roster.csv").write_text("id,name,email\nbob,Bob,\nzoe,Zoe,\n")

    written = klass.merge("shard-1")
    assert (written.submissions, written.waiting, written.missing) == (
        3,
        ["bob", "dan"],
        ["Zoe (zoe)"],
    )
    assert "bob,,,,not-graded" in klass.book("grades")


def test_corrections_of_all_shards_are_merged(klass):
    header = "submission,exercise,points,reason,by\n"
    for number, name in ((1, "ada"), (2, "bob")):
        klass.grade(f"shard-{number}", Shard(number, 2))
        line = f"{name},phase1/double,{number},asked,Kim\n"
        same = "cleo,double,1,asked,Kim\n"
        (klass.root / f"shard-{number}" / "overrides.csv").write_text(header + line + same)
    klass.merge("shard-1", "shard-2")

    merged = (klass.root / "grades" / "overrides.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in merged] == ["submission", "ada", "cleo", "bob"]
    assert klass.warnings == []


def test_the_first_of_different_corrections_counts(klass):
    for number in (1, 2):
        klass.grade(f"shard-{number}", Shard(number, 2))
        (klass.root / f"shard-{number}" / "overrides.csv").write_text(
            f"submission,exercise,points,reason,by\nada,double,{number},asked,Kim\n"
        )
    klass.merge("shard-1", "shard-2")

    assert "have different points for double of ada" in klass.warnings[0]
    assert "ada,double,1," in (klass.root / "grades" / "overrides.csv").read_text()


def test_the_changes_of_all_shards_are_merged(klass):
    lines = ["2026-11-02 10:00:00,ada,0,9,9,9,t,0,9,passed"]
    lines += ["2026-11-01 10:00:00,bob,9,0,9,9,t,9,0,failed"]
    for number, line in enumerate(lines, 1):
        klass.grade(f"shard-{number}", Shard(number, 2))
        changes = klass.root / f"shard-{number}" / "changes.csv"
        changes.write_text(f"{','.join(COLUMNS)}\n{line}\n")
    klass.merge("shard-1", "shard-2")
    klass.merge("shard-1", "shard-2")

    merged = (klass.root / "grades" / "changes.csv").read_text().splitlines()
    assert merged == [",".join(COLUMNS), *reversed(lines)]


def test_merging_again_warns_of_nothing(klass):
    for number in (1, 2):
        klass.grade(f"shard-{number}", Shard(number, 2))
        klass.merge("shard-1")

    assert klass.warnings == []


def test_a_folder_without_grades_is_refused(klass):
    (klass.root / "empty").mkdir()

    with pytest.raises(UnusableInput, match="is not a folder of grades"):
        klass.merge("empty")


def test_a_shard_that_is_still_graded_is_refused(klass):
    klass.grade("shard-1", Shard(1, 5))

    with GradeStore(klass.root / "shard-1").locked(), pytest.raises(FolderInUse):
        klass.merge("shard-1")


@pytest.mark.slow
def test_shards_and_their_merge_by_command_use_one_seed(klass):
    def gradsync(*arguments):
        command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
        subprocess.run(command, cwd=klass.course.root, check=True, capture_output=True)

    outs = [klass.root / f"shard-{number}" for number in (1, 2)]
    for number, out in enumerate(outs, 1):
        options = ["--shard", f"{number}/2", "--out", out, "--unsafe-no-sandbox"]
        gradsync("grade", klass.root / "class", *options)
    gradsync("merge", *outs, "--out", klass.root / "grades")

    assert len({GradeStore(out).seed for out in (*outs, klass.root / "grades")}) == 1
    assert klass.book("grades").count(",graded,") == 5
