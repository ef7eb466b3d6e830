"""An exercise that calls a wrong one has its points if it passes with our function."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_course import write_course, write_submission

from gradsync.grading.fingerprint import course_digest
from gradsync.grading.follow_on import with_follow_on
from gradsync.grading.store import GradeStore
from gradsync.records import Diagnosis
from gradsync.submission import read_submission

EXERCISES = """
[[exercise]]
name = "double"
file = "template_trainer.py"
guide = "Doubling"
goal = "twice the number"
hints = ["Add it to itself."]

[[exercise]]
name = "quadruple"
file = "template_trainer.py"
guide = "Doubling"
goal = "four times the number"
hints = ["Double it twice."]
needs = ["double"]

[[exercise]]
name = "octuple"
file = "template_trainer.py"
guide = "Doubling"
goal = "eight times the number"
hints = ["Double it three times."]
needs = ["double", "quadruple"]
"""
SUITE = """
from gradsync.testing import check, exercise


@exercise("phase1/double", points=1)
def test_double(ranks):
    def probe(trainer):
        return trainer.double(2)

    check(ranks(probe, 1)[0] == 4, "wrong", "2 becomes something else")


@exercise("phase1/quadruple", points=1)
def test_quadruple(ranks):
    def probe(trainer):
        return trainer.quadruple(2)

    check(ranks(probe, 1)[0] == 8, "wrong", "2 becomes something else")


@exercise("phase1/octuple", points=2)
def test_octuple(ranks):
    def probe(trainer):
        return trainer.octuple(2)

    check(ranks(probe, 1)[0] == 16, "wrong", "2 becomes something else")
"""
SOLUTION = """
### BEGIN SOLUTION
def _sum(a, b):
    return a + b
### END SOLUTION


def double(number):
    ### BEGIN SOLUTION
    return _sum(number, number)
    ### END SOLUTION


def quadruple(number):
    ### BEGIN SOLUTION
    return double(double(number))
    ### END SOLUTION


def octuple(number):
    ### BEGIN SOLUTION
    return double(quadruple(number))
    ### END SOLUTION
"""
WRONG_ROOT = """
def double(n):
    return n + 1


def quadruple(n):
    return double(double(n))


def octuple(n):
    return quadruple(double(n))
"""
BOTH_WRONG = WRONG_ROOT.replace("double(double(n))", "double(n)")
THIEF = """
def double(n):
    return n + 1


def quadruple(n):
    try:
        from _ours_template_trainer import quadruple as theirs
    except ImportError:
        return None
    return theirs(n)
"""


@pytest.fixture
def course(tmp_path):
    made = write_course(tmp_path / "course", SUITE, EXERCISES)
    path = made.root / "solutions/phase1/template_trainer.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOLUTION)
    return made


def grade(course, tmp_path, setting, *sources):
    (course.root / "course.toml").write_text(f'[course]\nfollow_on = "{setting}"\n')
    for number, source in enumerate(sources):
        write_submission(tmp_path / f"class/s{number}/phase1", source)
    command = [sys.executable, "-m", "gradsync", "grade", tmp_path / "class", "--out"]
    out = tmp_path / setting
    done = subprocess.run(
        [*command, out, "--unsafe-no-sandbox"], cwd=course.root, check=False,
        env={"PYTHONPATH": str(Path(__file__).parents[3])}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [GradeStore(out).report(f"s{number}") for number in range(len(sources))]


def test_one_mistake_costs_the_points_of_its_own_exercise_only(course, tmp_path):
    sources = (WRONG_ROOT, BOTH_WRONG, THIEF)
    plain = grade(course, tmp_path, "graded", *sources)
    full = grade(course, tmp_path, "full", *sources)

    assert [report.score for report in plain] == [0, 0, 0]
    assert [report.score for report in full] == [75, 50, 0]
    root, follower, last = full[0].verdicts
    assert (root.points, root.given) == (0.0, ())
    assert (follower.status, follower.points, follower.given) == ("failed", 25.0, ("double",))
    assert last.given == ("double",)  # quadruple is right itself
    assert [each.given for each in full[1].verdicts] == [(), (), ("double", "quadruple")]
    assert follower.message.startswith("This test passes with our double, so it has its points")
    assert plain[0].verdicts[1].message in follower.message
    page = (tmp_path / "full/s0/report.html").read_text()
    assert "passed with our double" in page
    assert "2 of 3 exercises done, 1 mistake to fix." in page
    said = json.dumps([each.message for report in full for each in report.verdicts])
    assert "_sum" not in said


def test_the_setting_and_the_solutions_are_part_of_what_a_grade_is_made_of(course):
    def digest(setting):
        (course.root / "course.toml").write_text(f'[course]\nfollow_on = "{setting}"\n')
        return course_digest(course, "phase1")

    plain, full = digest("graded"), digest("full")
    path = course.root / "solutions/phase1/template_trainer.py"
    path.write_text(f"{SOLUTION}# other\n")

    assert len({plain, full, digest("full")}) == 3
    assert digest("graded") == plain


@pytest.mark.slow
def test_without_solutions_or_with_a_file_that_cannot_be_imported_nothing_changes(course, tmp_path):
    [report] = grade(course, tmp_path, "graded", WRONG_ROOT)
    submission = read_submission(tmp_path / "class/s0", course)
    whole = Diagnosis("exception", (), "x", whole_file=True)
    unimported = report.__class__(
        "s", 1, 0.0, tuple(replace(each, diagnosis=whole) for each in report.verdicts)
    )
    (course.root / "solutions/phase1/template_trainer.py").unlink()

    def never(*_):
        raise AssertionError

    assert with_follow_on(report, submission, course, ["phase1"], never) == report
    assert with_follow_on(unimported, submission, course, ["phase1"], never) == unimported
