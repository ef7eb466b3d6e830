"""`make truth` skips exercises whose tests run no code that a mistake changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from small_course import EXERCISES, write_course

from checks.impact import affected_exercises, exercises_running, ran_by_exercise
from gradsync.course.known_submissions import reference
from gradsync.submission import Submission

FILE = "phase1/template_trainer.py"
SOLUTION = '''
"""Twice a number, and a counter."""

LIMIT = 9


def double(number, times=2):
    """Return it twice."""
    return add(number, number)


def add(one, other):
    def sum_up():
        return one + other

    return sum_up()


class Counter:
    step = 1

    def __init__(self):
        self.count = 0

    def go(self):
        self.count += self.step

    @property
    def half(self):
        return self.count / 2

    @half.setter
    def half(self, count):
        self.count = 2 * count
'''
SUITE = '''
from gradsync.testing import exercise


@exercise("phase1/double", points=1)
def test_doubled(ranks):
    """A number is doubled."""
    assert ranks(lambda trainer: trainer.double(2), 1, process_group=False)[0] == 4


@exercise("phase1/Counter", points=1)
def test_counted(ranks):
    """A counter counts."""

    def probe(trainer):
        counter = trainer.Counter()
        counter.half = 0
        counter.go()
        return counter.count

    assert list(ranks(probe, 2)) == [1, 1]
'''
DOUBLED, COUNTED = "phase1/double", "phase1/Counter"
RAN = {
    DOUBLED: frozenset({f"{FILE} double", f"{FILE} add"}),
    COUNTED: frozenset({f"{FILE} Counter.__init__", f"{FILE} Counter.go", f"{FILE} Counter.half"}),
}


def test_an_exercise_runs_a_class_by_its_methods():
    assert exercises_running([f"{FILE} Counter"], RAN) == [COUNTED]
    assert exercises_running([f"{FILE} add", f"{FILE} Count"], RAN) == [DOUBLED]


def test_each_exercise_is_asked_what_its_tests_run(tmp_path):
    (tmp_path / "solutions/phase1").mkdir(parents=True)
    (tmp_path / "solutions" / FILE).write_text(SOLUTION)
    exercises = EXERCISES + EXERCISES.replace("double", "Counter")
    course = write_course(tmp_path, SUITE, exercises=exercises)

    with ThreadPoolExecutor(1) as pool:
        ran = ran_by_exercise(course, "phase1", 1, pool)

    assert ran == RAN
    assert reference(course).files[FILE].decode() == SOLUTION


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        pytest.param("add(number, number)", "number", [DOUBLED], id="a function"),
        pytest.param("one + other", "one - other", [DOUBLED], id="a function in one"),
        pytest.param("self.count = 0", "self.count = 1", [COUNTED], id="a method"),
        pytest.param("+= self.step", "= self.step", [COUNTED], id="another"),
        pytest.param("count / 2", "count / 3", [COUNTED], id="the first of one name"),
        pytest.param("2 * count", "3 * count", [COUNTED], id="the last of one name"),
        pytest.param("\n\nclass", "  # the sum\n\n\nclass", [], id="a comment alone"),
        pytest.param("times=2", "times=3", [DOUBLED], id="a signature"),
        pytest.param("step = 1", "step = 2", [DOUBLED, COUNTED], id="a class"),
        pytest.param("LIMIT = 9", "LIMIT = 8", [DOUBLED, COUNTED], id="a constant"),
        pytest.param(
            "class Counter:",
            "def double(n): ...\n\n\nclass Counter:",
            [DOUBLED, COUNTED],
            id="more",
        ),
        pytest.param("class Counter:", "class Counter", [DOUBLED, COUNTED], id="no Python"),
    ],
)
def test_a_change_affects_the_exercises_that_run_it(old, new, wanted):
    assert SOLUTION.count(old) == 1
    solution = Submission("solution", {FILE: SOLUTION.encode()})
    changed = Submission("changed", {FILE: SOLUTION.replace(old, new).encode()})

    assert affected_exercises(changed, solution, RAN) == wanted
