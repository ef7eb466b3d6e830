"""A course with one exercise and two tests, which takes little time to grade, with submissions.

A submission with `# slow` in its source waits until the course has a file `hurry`. The files
`at-work-10` and `at-work-100` show that a rank has started the test with this number.
"""

from __future__ import annotations

from pathlib import Path

from gradsync.course.catalogue import Course

EXERCISES = """
[[exercise]]
name = "double"
file = "template_trainer.py"
guide = "Doubling"
goal = "twice the number"
hints = ["Add it to itself."]
"""
SUITE = '''
import time
from pathlib import Path

import pytest

from gradsync.testing import check, exercise

COURSE = Path(__file__).parents[3]


@pytest.mark.parametrize("most", [10, 100])
@exercise("phase1/double", points=2)
def test_a_number_is_doubled(ranks, rng, pytestconfig, most):
    """A number comes back twice as large."""

    def probe(trainer, number, seconds, sign):
        if seconds:
            Path(sign).touch()
            time.sleep(seconds)
        return trainer.double(number)

    number = int(rng.integers(2, most))
    source = (pytestconfig.getoption("--submission") / "phase1/template_trainer.py").read_text()
    rest = 60 if "# slow" in source and not (COURSE / "hurry").exists() else 0
    inputs = {"number": number, "seconds": rest, "sign": str(COURSE / f"at-work-{most}")}
    seen = ranks(probe, 1, process_group=False, **inputs)

    check(seen[0] == 2 * number, "not-doubled", "it is not twice as large")
'''
PLAIN_SUITE = """
from gradsync.testing import check, exercise


@exercise("phase1/double", points=1)
def test_two(ranks):
    def probe(trainer):
        return trainer.double(2)

    [number] = ranks(probe, 1)
    check(number == 4, "wrong", "2 becomes something else")


@exercise("phase1/double", points=1)
def test_three_on_two_ranks(ranks):
    def probe(trainer):
        return trainer.double(3)

    check(list(ranks(probe, 2)) == [6, 6], "wrong", "3 becomes something else")


@exercise("phase1/double", points=1)
def test_nothing_comes_of_nothing(ranks):
    def probe(trainer):
        return trainer.double(None) is None

    check(all(ranks(probe, 1)), "wrong", "None becomes something")
"""
RIGHT = "def double(number):\n    return 2 * number\n"
WRONG = "def double(number):\n    return number + 1\n"
SLOW = f"{RIGHT}# slow\n"


def write_course(
    root: Path, source: str = SUITE, exercises: str = EXERCISES, phase: str = "phase1"
) -> Course:
    """Write a course with one suite, or add a phase to a course."""
    (root / phase).mkdir(parents=True, exist_ok=True)
    (root / phase / "exercises.toml").write_text(exercises)
    suite = root / "tests" / "hidden" / phase
    suite.mkdir(parents=True, exist_ok=True)
    (suite / "test_trainer.py").write_text(source)
    return Course(root)


def write_submission(folder: Path, source: str = RIGHT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "template_trainer.py").write_text(source)
    return folder
