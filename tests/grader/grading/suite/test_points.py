"""The points of tests: weights among all tests of a phase, scaled to 100."""

import pytest
from small_course import RIGHT, write_course

from gradsync.course.catalogue import CourseError
from gradsync.course.settings import read_settings
from gradsync.grading.grade import grade
from gradsync.grading.suite.weights import points_of
from gradsync.submission import Submission

ADA = Submission("ada", {"phase1/template_trainer.py": RIGHT.encode()})
EXERCISES = """
[[exercise]]
name = "double"
file = "template_trainer.py"
guide = "Doubling"
goal = "twice the number"
hints = ["Add it to itself."]

[[exercise]]
name = "triple"
file = "template_trainer.py"
guide = "Tripling"
goal = "three times the number"
hints = ["Add it to its double."]
"""
SUITE = '''
import pytest

from gradsync.testing import exercise


@exercise("phase1/double", points=1)
def test_light():
    """It is light."""


@exercise("phase1/double", points=2)
@pytest.mark.parametrize("case", [1, 2, 3])
def test_of_three_parts(case):
    """It has three parts."""


@exercise("phase1/triple", points=5)
def test_heavy():
    """It is heavy."""
'''
MORE = """
from gradsync.testing import exercise


@exercise("phase1/triple", points=2)
def test_more():
    pass
"""
THIRDS = {f"of_three_parts[{case}]": 25 / 3 for case in (1, 2, 3)}


@pytest.fixture
def course(tmp_path):
    return write_course(tmp_path, SUITE, EXERCISES)


def points(course, **options):
    report = grade(ADA, course, phases=["phase1"], seed=1, parallel=1, **options)
    return {verdict.id.partition("::test_")[2]: verdict.max_points for verdict in report.verdicts}


def test_weights_are_scaled_to_100_points(course):
    assert points(course) == pytest.approx({"light": 12.5, **THIRDS, "heavy": 62.5})
    assert points_of(course, "hidden", "phase1") == {"phase1/double": 37.5, "phase1/triple": 62.5}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exercises": ["phase1/triple"]}, {"heavy": 62.5}),
        ({"pytest_options": ["-k", "light"]}, {"light": 12.5}),
        ({"pytest_options": ["-k", "of_three_parts"]}, THIRDS),
    ],
)
def test_a_selected_test_keeps_its_points(course, options, expected):
    assert points(course, **options) == pytest.approx(expected)


def test_a_new_test_takes_its_share_from_all_others(course):
    (course.root / "tests/hidden/phase1/test_more.py").write_text(MORE)

    seen = points(course)

    assert sum(seen.values()) == pytest.approx(100)
    assert (seen["heavy"], seen["more"]) == (50, 20)


def test_a_visible_test_has_its_weight_as_points(course):
    (course.root / "tests/hidden").rename(course.root / "tests/visible")

    assert sum(points(course, audience="visible").values()) == 8


def test_course_toml_sets_the_points_of_a_phase_and_weights_stay(course):
    (course.root / "course.toml").write_text("[phase1]\npoints = 10\n")

    assert points_of(course, "hidden", "phase1") == {"phase1/double": 3.75, "phase1/triple": 6.25}


@pytest.mark.parametrize("value", ["0", "-5", "true", '"ten"', "inf"])
def test_unusable_points_of_a_phase_are_one_clear_error(course, value):
    (course.root / "course.toml").write_text(f"[phase1]\npoints = {value}\n")

    with pytest.raises(CourseError, match="points of phase1 must be a number above 0"):
        read_settings(course.root)
