"""The commands, the gradebook and the templates use the phases of the course, here three."""

import subprocess
import sys

import pytest
from small_course import PLAIN_SUITE, RIGHT, write_course, write_submission

from gradsync.course.templates import templates

PHASES = ("phase1", "phase2", "phase3")
SOLUTION = """def double(number):
    ### BEGIN SOLUTION
    return 2 * number
    ### END SOLUTION
"""


@pytest.fixture
def course(tmp_path):
    for phase in PHASES:
        made = write_course(tmp_path / "course", PLAIN_SUITE.replace("phase1", phase), phase=phase)
        write_submission(tmp_path / "course" / "solutions" / phase, SOLUTION)
    return made


def gradsync(course, *arguments):
    command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
    return subprocess.run(command, cwd=course.root, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("options", "graded"),
    [((), PHASES), pytest.param(("--phase", "3"), ("phase3",), marks=pytest.mark.slow)],
)
def test_the_gradebook_has_a_column_for_each_phase(course, tmp_path, options, graded):
    for phase in PHASES:
        write_submission(tmp_path / "ada" / phase, RIGHT)

    done = gradsync(
        course, "grade", tmp_path / "ada", *options, "--unsafe-no-sandbox", "--out", "out"
    )

    assert done.returncode == 0, done.stderr
    header, row = (course.root / "out" / "gradebook.csv").read_text("utf-8-sig").splitlines()
    assert header.startswith("submission,score,max_score,phase1,phase2,phase3,status,")
    assert [bool(cell) for cell in row.split(",")[3:6]] == [phase in graded for phase in PHASES]


@pytest.mark.parametrize(
    ("command", "number"),
    [("grade", "0"), ("grade", "4"), ("trace", "phase"), ("trace", "../phase1")],
)
def test_a_phase_that_the_course_lacks_is_refused(course, command, number):
    done = gradsync(course, command, "solutions", "--phase", number)

    assert done.returncode == 2
    assert done.stderr == (
        f"gradsync: This course has no phase {number!r}. Choose --phase 1, 2 or 3.\n"
    )


def test_only_the_first_phase_is_left_out_of_a_hint(course):
    texts = dict(templates(course))

    asked = [texts[f"{phase}/template_trainer.py"].split("`")[1] for phase in PHASES]

    assert asked == [
        "gradsync hint double",
        "gradsync hint phase2/double",
        "gradsync hint phase3/double",
    ]


def test_ten_phases_are_in_the_order_of_their_numbers(course):
    write_course(course.root, phase="phase10")

    assert course.phases == (*PHASES, "phase10")
