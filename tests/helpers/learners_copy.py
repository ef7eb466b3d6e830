"""A small course with solutions, hidden and visible tests, and notebooks, for releases."""

from __future__ import annotations

import json
from pathlib import Path

from small_course import EXERCISES, PLAIN_SUITE

from gradsync.course.catalogue import Course

SOLUTION = '''"""Twice a number."""


def double(number):
    """Return twice the number."""
    ### BEGIN SOLUTION
    secret = number
    return secret + number
    ### END SOLUTION


if __name__ == "__main__":
    print(double(2))
'''
VISIBLE_SUITE = """
from gradsync.testing import check, exercise
from support.rules.doubling import four


@exercise("phase1/double", points=1)
def test_two_becomes_four(ranks):
    def probe(trainer):
        return trainer.double(2)

    [number] = ranks(probe, 1)
    check(four(number), "not-doubled", "2 becomes something else")
"""
CODES = """
[[meaning]]
code = "not-doubled"
exercise = "double"
symptom = "Two stays two."
cause = "The number is not added to itself."
wrong = "return number"
right = "return number * 2"
"""
FILES = {
    "course.toml": '[course]\ntitle = "Doubling, for \\"beginners\\""\n',
    "constraints.txt": "numpy==1.26.4\n",
    "phase1/exercises.toml": EXERCISES,
    "phase1/codes.toml": CODES,
    "phase1/GUIDELINES.md": (
        "# Doubling\n\n![Two](pictures/two.svg) [far](https://example.org)"
        " [Speed](../docs/speed.md) [next](../phase2/GUIDELINES.md#halves)"
        " [lesson](../notebooks/01_doubling.ipynb)\n"
    ),
    "docs/speed.md": "# Speed\n\n![Slow](slow.svg) [Doubling](../phase1/GUIDELINES.md)\n",
    "docs/slow.svg": "<svg/>",
    "docs/teaching.md": "# For staff\n",
    "phase1/pictures/two.svg": "<svg/>",
    "phase1/draft.py": "secret = 1\n",
    "solutions/phase1/template_trainer.py": SOLUTION,
    "tests/visible/phase1/test_doubling.py": VISIBLE_SUITE,
    "tests/hidden/phase1/test_trainer.py": PLAIN_SUITE,
    "tests/support/__init__.py": "",
    "tests/support/numbers.py": "FOUR = 4\n",
    "tests/support/rules/__init__.py": "",
    "tests/support/rules/doubling.py": (
        "from .. import numbers\n\n\ndef four(number):\n    return number == numbers.FOUR\n"
    ),
    "tests/support/rules/hidden_ones.py": "HIDDEN = 1\n",
    "notebooks/drawing.py": "import colours\n",
    "notebooks/colours.py": "BLUE = 1\n",
    "notebooks/build.py": "STAFF = 1\n",
}


def notebook(*cells: tuple[str, str, dict[str, object]]) -> str:
    """Return a notebook with cells of (type, source, metadata)."""
    made = [
        {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": about}
        | ({"outputs": [], "execution_count": 1} if kind == "code" else {})
        for kind, source, about in cells
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


NOTEBOOKS = {
    "notebooks/01_doubling.ipynb": notebook(
        ("code", '%pip install "..[notebooks]"\nimport drawing', {}),
        ("code", 'check("double", double)', {}),
        ("markdown", "[Doubling](../phase1/GUIDELINES.md) [halves](../phase2/GUIDELINES.md)", {}),
    ),
    "notebooks/nbgrader/source/phase1/phase1.ipynb": notebook(
        ("code", SOLUTION.partition("\n\n\nif")[0], {"nbgrader": {"solution": True}}),
        ("code", "### BEGIN HIDDEN TESTS\nassert secret\n### END HIDDEN TESTS\nshown = 1", {}),
    ),
}


def write_whole_course(root: Path) -> Course:
    """Write the staff's version of the course."""
    for path, text in (FILES | NOTEBOOKS).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Course(root)
