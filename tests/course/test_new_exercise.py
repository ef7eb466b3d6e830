"""An exercise that is added to a copy of the course by the steps of CONTRIBUTING.md."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradsync.course.catalogue import Course, find_course
from gradsync.course.known_submissions import reference, wrong_submissions
from gradsync.submission import Submission

COURSE = find_course(Path(__file__))
FILE = "phase1/template_trainer.py"
SOLUTION = '''def sum_over_ranks(number: float) -> float:
    """Return the sum of all ranks' numbers, on every rank."""
    ### BEGIN SOLUTION
    total = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()
    ### END SOLUTION


'''
ENTRY = """
[[exercise]]
name = "sum_over_ranks"
file = "template_trainer.py"
guide = "Sums"
goal = "every rank ends with the sum of all numbers"
hints = ["Which collective adds up tensors?"]
"""
SECTION = "\n## Sums\n\nAn all-reduce gives every rank the sum.\n"
RULE = '''"""Mistakes in sums over ranks."""

from typing import Any

from gradsync.records import Diagnosis, Observation


def own_number(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise ranks that return their own number."""
    if list(seen) != [float(rank) for rank in range(len(seen))]:
        return None
    text = "Every rank returns its own number. Add up the numbers of all ranks."
    return Diagnosis("number-is-local", tuple(range(len(seen))), text, None, "Sums")
'''
SUITE = '''"""The sum over ranks."""

from gradsync.testing import assert_on_every_rank, exercise
from support.rules.sums import own_number


@exercise("phase1/sum_over_ranks", points=POINTS)
def test_every_rank_ends_with_the_sum(ranks):
    """Ranks pass their own rank, and get the sum of all ranks."""

    def probe(rank, trainer):
        return trainer.sum_over_ranks(float(rank))

    seen = ranks(probe, world_size=SIZE)

    assert_on_every_rank(seen, SIZE * (SIZE - 1) / 2, mistakes=[own_number])
'''
WRONG = """
[[sum_over_ranks]]
name = "forgets-to-sum"
code = "number-is-local"
old = '''
    dist.all_reduce(total)
'''
new = ""
"""

MEANING = """
[[meaning]]
code = "number-is-local"
exercise = "sum_over_ranks"
cause = "The ranks' numbers are not added up."
wrong = "return number"
right = "dist.all_reduce(total)"
"""


def add(path, text, before=None):
    """Append a text to a file, or insert it before another text."""
    old = path.read_text() if path.exists() else ""
    path.write_text(old + text if before is None else old.replace(before, text + before, 1))


def add_exercise(root):
    add(root / "solutions" / FILE, SOLUTION, before="def main() -> None:")  # step 1
    add(root / "phase1/exercises.toml", ENTRY)  # step 2
    guide = root / "phase1/GUIDELINES.md"  # step 3
    rows = re.findall(r"^\| \d+ \| `\w+` \|.*\n", guide.read_text(), re.MULTILINE)
    row = f"| {len(rows) + 1} | `sum_over_ranks` | ? | [Sums](#sums) |\n"
    guide.write_text(guide.read_text().replace(rows[-1], rows[-1] + row) + SECTION)
    add(root / "tests/support/rules/sums.py", RULE)  # step 4
    for audience, points, size in (("visible", "1", "2"), ("hidden", "5", "4")):  # steps 5 and 6
        suite = SUITE.replace("POINTS", points).replace("SIZE", size)
        add(root / "tests" / audience / "phase1/test_sums.py", suite)
    add(root / "tests/known/wrong/phase1/template_trainer.toml", WRONG)  # step 7
    add(root / "phase1/codes.toml", MEANING)
    gradsync(root, "templates")  # step 8


def gradsync(root, *arguments):
    command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    ignored = shutil.ignore_patterns("__pycache__")
    parts = ("support", "visible", "hidden", "known/wrong")
    for part in (*COURSE.phases, "solutions", *(f"tests/{name}" for name in parts)):
        shutil.copytree(COURSE.root / part, root / part, ignore=ignored)
    add_exercise(root)
    return Course(root)


def write(submission: Submission, folder: Path) -> Path:
    for path, source in submission.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(source)
    return folder


def test_the_template_and_the_guide_have_the_exercise(course):
    template = (course.root / FILE).read_text()
    guide = (course.root / "phase1/GUIDELINES.md").read_text()

    assert 'NotImplementedError("phase1/sum_over_ranks")' in template
    assert "all_reduce(total)" not in template
    assert re.search(r"^\| \d+ \| `sum_over_ranks` \| 3 \| \[Sums\]", guide, re.MULTILINE)


def test_the_code_of_its_mistake_is_explained(course):
    assert "The ranks' numbers are not added up." in gradsync(
        course.root, "explain", "number-is-local"
    )


@pytest.mark.slow
def test_the_check_reports_the_exercise_as_unwritten_and_then_as_correct(course, tmp_path):
    shutil.copytree(course.root, tmp_path / "copy")
    before = gradsync(tmp_path / "copy", "check", "sum_over_ranks")
    write(reference(course), tmp_path / "copy")

    after = gradsync(tmp_path / "copy", "check", "sum_over_ranks")

    assert "1 still to write" in before
    assert "✓ sum_over_ranks" in after


@pytest.mark.slow
def test_a_mistake_in_it_costs_its_share_of_100_points(course, tmp_path):
    [wrong] = [w for w in wrong_submissions(course, "phase1") if w.name == "forgets-to-sum"]
    folder = write(wrong.submission(course), tmp_path / "ada")

    options = ("--phase", 1, "--unsafe-no-sandbox", "--out", tmp_path / "out")
    gradsync(course.root, "grade", folder, *options)

    report = json.loads((tmp_path / "out/ada/report.json").read_text())
    [failed] = [test for test in report["tests"] if test["status"] != "passed"]
    assert failed["exercise"] == "phase1/sum_over_ranks"
    assert failed["diagnosis"]["code"] == wrong.code
    assert report["max_score"] == pytest.approx(100)
    assert failed["max_points"] == pytest.approx(100 * 5 / 105)
