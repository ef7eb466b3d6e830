"""Grading again: further phases, changed tests, parts of a class; nothing is mixed or lost."""

import csv
import re
from dataclasses import replace

import pytest
from download_samples import METADATA
from report_samples import report, verdict
from small_course import EXERCISES, WRONG, write_course, write_submission

from gradsync.cli.shared import say
from gradsync.errors import UnusableInput
from gradsync.exporting.export import export
from gradsync.grading import tasks
from gradsync.grading.classes.entries import entries_at
from gradsync.grading.classes.grade_class import grade_class
from gradsync.grading.classes.merging import merge
from gradsync.grading.classes.regrading import change_line
from gradsync.grading.classes.results import read_class
from gradsync.grading.store import GradeStore
from gradsync.submission import SubmissionError

ROSTER = "id,name,email\nada,Ada,a@x.org\nbob,Bob,b@x.org\nzoe,Zoe,z@x.org\n"


class Class:
    """Two submissions to a course of two phases; each phase has one test of 100 points."""

    def __init__(self, root, monkeypatch):
        self.root = root
        self.course = write_course(root / "course")
        write_course(root / "course", exercises=EXERCISES, phase="phase2")
        self.folder, self.out = root / "class", root / "out"
        self.points = {"phase1": 80.0, "phase2": 60.0}
        for name in ("ada", "bob"):
            write_submission(self.folder / name / "phase1")
            write_submission(self.folder / name / "phase2")
        monkeypatch.setattr(tasks, "grade", self._fake_grade)

    def grade(self, *phases, only="", **options):
        every = entries_at([self.folder], self.course, self.out, "gradsync grade")
        part = [entry for entry in every if not only or entry.name == only]
        phases = phases or ("phase1",)
        return list(grade_class(part, self.course, phases, self.out, members=every, **options))

    def change_the_test(self):
        suite = self.course.root / "tests/hidden/phase1/test_trainer.py"
        suite.write_text(f"{suite.read_text()}\n# changed\n")

    def rows(self):
        text = (self.out / "gradebook.csv").read_text(encoding="utf-8-sig")
        return {row["submission"]: row for row in csv.DictReader(text.splitlines())}

    def scores(self):
        return {name: (row["score"], row["max_score"]) for name, row in self.rows().items()}

    def _fake_grade(self, submission, _course, *, phases, seed, **_options):
        tests = [
            verdict(
                exercise=f"{phase}/double", id=f"{phase}/trainer::test", max_points=100.0,
                points=self.points[phase],
            )
            for phase in phases
        ]  # fmt: skip
        return report(*tests, submission=submission.name, seed=seed, notes=submission.notes)


@pytest.fixture
def klass(tmp_path, monkeypatch):
    return Class(tmp_path, monkeypatch)


@pytest.mark.parametrize("phases", [("phase2",), ("phase1", "phase2")])
def test_another_set_of_phases_in_a_folder_is_refused_with_advice(klass, phases):
    klass.grade("phase1")

    with pytest.raises(UnusableInput, match=r"grades of phase1, but.*--phase 1.*--add-phase"):
        klass.grade(*phases, fresh=True)
    assert klass.scores() == {"ada": ("80.0", "100.0"), "bob": ("80.0", "100.0")}


def test_the_phases_of_a_folder_are_known_after_the_grader_failed_on_all(klass):
    klass.grade("phase1")
    store = GradeStore(klass.out)
    for name in ("ada", "bob"):
        store.save(replace(store.graded(name), verdicts=(), problem="the grader failed"))

    with pytest.raises(UnusableInput, match="grades of phase1"):
        klass.grade("phase2")


def test_a_further_phase_is_added_to_the_points_of_the_others(klass):
    klass.grade("phase1")
    klass.grade("phase2", add_phase=True)
    again = klass.grade("phase2", add_phase=True)

    assert klass.scores() == {"ada": ("140.0", "200.0"), "bob": ("140.0", "200.0")}
    assert not any(outcome.is_new for outcome in again)
    assert klass.rows()["ada"]["phase1"] == "80.0"


def test_who_did_not_hand_in_the_further_phase_has_the_maximum_of_all(klass):
    klass.grade("phase1")
    klass.grade("phase2", only="ada", add_phase=True)

    assert klass.scores() == {"ada": ("140.0", "200.0"), "bob": ("80.0", "200.0")}
    assert "missing: phase2" in klass.rows()["bob"]["notes"]


def test_a_regrade_of_one_phase_of_several_keeps_the_other(klass):
    klass.grade("phase1", "phase2")
    klass.points["phase1"] = 50.0
    klass.grade("phase1", add_phase=True, fresh=True, only="ada")

    assert klass.scores() == {"ada": ("110.0", "200.0"), "bob": ("140.0", "200.0")}


def test_phases_with_different_seeds_are_not_added(klass):
    klass.grade("phase1")
    [ada, _] = klass.grade("phase2", add_phase=True, seed=5)

    assert "needs --seed" in ada.report.problem
    assert GradeStore(klass.out).report("ada").phases == {"phase1": 80.0}


def test_folders_of_different_phases_are_not_merged(klass):
    klass.grade("phase1")
    klass.out = klass.root / "other"
    klass.grade("phase2")

    with pytest.raises(UnusableInput, match="different phases"):
        merge([klass.root / "out", klass.out], klass.course, klass.root / "all", say)


def test_grades_of_an_earlier_test_are_named_and_not_exported(klass):
    klass.grade()
    klass.change_the_test()
    klass.grade(only="ada")
    results = read_class(GradeStore(klass.out), klass.course)

    assert results.stale == ("bob",)
    assert any("bob. Grade the whole class again" in warning for warning in results.warnings)
    assert "bob. Grade the whole class again" in (klass.out / "class.html").read_text()
    with pytest.raises(UnusableInput, match=r"bob.*--anyway"):
        export(klass.out, klass.course, "canvas", None, {})
    assert export(klass.out, klass.course, "canvas", None, {}, anyway=True).paths


def test_grades_of_one_version_of_the_tests_are_exported(klass):
    klass.grade()
    klass.change_the_test()
    klass.grade()

    assert read_class(GradeStore(klass.out), klass.course).stale == ()
    assert export(klass.out, klass.course, "canvas", None, {}).paths


def test_a_new_maximum_of_a_phase_is_that_of_all_grades(klass):
    klass.grade()
    (klass.course.root / "course.toml").write_text("[phase1]\npoints = 10\n")
    again = klass.grade(only="ada")

    assert klass.scores() == {"ada": ("8.0", "10.0"), "bob": ("8.0", "10.0")}
    assert not again[0].is_new
    assert read_class(GradeStore(klass.out), klass.course).stale == ()


def test_a_regrade_says_what_changed(klass):
    klass.grade()
    klass.points["phase1"] = 70.0
    changes = [outcome.change for outcome in klass.grade(fresh=True, seed=7)]
    klass.points["phase1"] = 75.0
    klass.grade(only="ada", fresh=True, seed=7)

    assert change_line(changes[0]) == "ada: 80 -> 70 of 100 (phase1/trainer::test 80 -> 70)"
    rows = list(csv.DictReader((klass.out / "changes.csv").read_text().splitlines()))
    assert [(row["submission"], row["score_before"], row["score_after"]) for row in rows] == [
        ("ada", "80.0", "70.0"),
        ("bob", "80.0", "70.0"),
        ("ada", "70.0", "75.0"),
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d ", row["graded_at"]) for row in rows)


def test_a_regrade_without_a_change_adds_no_line(klass):
    klass.grade()

    assert [outcome.change.tests for outcome in klass.grade(fresh=True)] == [[], []]
    assert not (klass.out / "changes.csv").exists()


def test_a_further_phase_is_no_change(klass):
    klass.grade("phase1")

    again = klass.grade("phase2", add_phase=True)
    assert [outcome.change.tests for outcome in again] == [[], []]
    assert not (klass.out / "changes.csv").exists()


def test_a_change_is_found_although_a_broken_test_came_between(klass, monkeypatch):
    klass.grade()
    with monkeypatch.context() as broken:
        broken.setattr(tasks, "grade", lambda *_, **__: 1 / 0)
        klass.grade(fresh=True, only="ada", seed=7)
    klass.points["phase1"] = 70.0
    [outcome] = klass.grade(fresh=True, only="ada", seed=7)

    assert change_line(outcome.change).startswith("ada: 80 -> 70 of 100")


def test_the_rest_of_the_class_is_not_graded_rather_than_missing(klass, tmp_path):
    (tmp_path / "roster.csv").write_text(ROSTER)
    klass.grade(only="ada", roster=tmp_path / "roster.csv")

    states = {name: row["status"] for name, row in klass.rows().items()}
    assert states == {"ada": "graded", "bob": "not-graded", "zoe": "missing"}


def test_a_part_of_the_class_leaves_the_facts_of_the_others(klass):
    klass.grade()
    facts = GradeStore(klass.out).facts()
    write_submission(klass.folder / "bob" / "phase1", WRONG)
    klass.grade(only="ada", fresh=True)

    assert GradeStore(klass.out).facts() == facts


def test_the_graded_files_are_kept_and_linked_for_staff(klass):
    klass.grade()
    source = (klass.folder / "ada/phase1/template_trainer.py").read_bytes()

    assert (klass.out / "ada/submission/phase1/template_trainer.py").read_bytes() == source
    assert 'href="ada/submission/"' in (klass.out / "class.html").read_text()


def test_a_group_is_graded_once_for_all_members(klass, monkeypatch):
    download = klass.root / "download"
    for name in ("submission_101", "submission_102"):
        write_submission(download / name)
    (download / "submission_metadata.yml").write_text(METADATA)
    graded = []
    real = tasks.grade
    monkeypatch.setattr(
        tasks, "grade", lambda s, *a, **o: graded.append(s.name) or real(s, *a, **o)
    )
    klass.folder = download
    outcomes = klass.grade()
    again = klass.grade()

    assert graded == ["Ada Lovelace", "Bob"]
    assert [each.report.submission for each in outcomes] == ["Ada Lovelace", "Bob", "Cleo"]
    assert not any(each.is_new for each in again)
    assert klass.rows()["Cleo"]["score"] == "80.0"
    assert read_class(GradeStore(klass.out), klass.course).similar == ()


@pytest.mark.parametrize("place", ["", "grades", "ada/grades"])
def test_grades_are_never_written_among_the_submissions(klass, place):
    klass.out = klass.folder / place

    with pytest.raises(SubmissionError, match="Choose a folder outside of it"):
        klass.grade()
