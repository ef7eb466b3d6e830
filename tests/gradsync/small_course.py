"""A course of one exercise, whose grades cost next to nothing, and submissions to it.

One with `# slow` in its source is not done with before there is a file `hurry` in the course; a
file `at-work` says that a rank has begun with it.
"""

from __future__ import annotations

from pathlib import Path

from gradsync.course import Course

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

from gradsync.testing import check, exercise

HURRY, AT_WORK = (Path(__file__).parents[3] / name for name in ("hurry", "at-work"))


@exercise("phase1/double", points=2)
def test_a_number_is_doubled(ranks, rng, pytestconfig):
    """A number comes back twice as large."""

    def probe(trainer, number, seconds, sign):
        if seconds:
            Path(sign).touch()
            time.sleep(seconds)
        return trainer.double(number)

    number = int(rng.integers(100))
    source = (pytestconfig.getoption("--submission") / "phase1/template_trainer.py").read_text()
    rest = 60 if "# slow" in source and not HURRY.exists() else 0
    told = {"number": number, "seconds": rest, "sign": str(AT_WORK)}
    seen = ranks(probe, 1, process_group=False, **told)

    check(seen[0] == 2 * number, "not-doubled", "it is not twice as large")
'''
RIGHT = "def double(number):\n    return 2 * number\n"
WRONG = "def double(number):\n    return number + 1\n"
SLOW = f"{RIGHT}# slow\n"


def write_course(root: Path) -> Course:
    (root / "phase1").mkdir(parents=True)
    (root / "phase1" / "exercises.toml").write_text(EXERCISES)
    suite = root / "tests" / "hidden" / "phase1"
    suite.mkdir(parents=True)
    (suite / "test_trainer.py").write_text(SUITE)
    return Course(root)


def write_submission(folder: Path, source: str = RIGHT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "template_trainer.py").write_text(source)
    return folder
