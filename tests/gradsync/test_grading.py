"""How a suite is run on a submission."""

import gc

from small_course import RIGHT, write_course

from gradsync.grading import SWEPT_AFTER, grade
from gradsync.submission import Submission

WITNESSES = """
import weakref

import pytest

from gradsync.testing import exercise

seen = []


class Seen:
    pass


@pytest.mark.parametrize("number", range(3))
@exercise("phase1/double", points=3)
def test_the_first_is_let_go(number):
    value = Seen()
    seen.append(weakref.ref(value))
    error = ValueError(value, locals())
    if number < 2 or seen[0]() is not None:  # the last error of all is Python's own to keep
        raise error
"""


def test_what_a_failed_test_saw_is_let_go(tmp_path):
    course = write_course(tmp_path, WITNESSES, "witnesses")
    submission = Submission("ada", {"phase1/template_trainer.py": b""})

    report = grade(submission, course, phases=["phase1"], seed=1, workers=1)

    assert [verdict.status for verdict in report.verdicts] == ["error", "error", "passed"]


def test_what_many_suites_leave_is_swept_up(tmp_path):
    course = write_course(tmp_path, name="swept")
    submission = Submission("ada", {"phase1/template_trainer.py": RIGHT.encode()})
    objects = []

    for _ in range(3 * SWEPT_AFTER):
        assert grade(submission, course, phases=["phase1"], seed=1, workers=1).score == 2
        objects.append(len(gc.get_objects()))

    settled, later = objects[SWEPT_AFTER : 2 * SWEPT_AFTER], objects[2 * SWEPT_AFTER :]
    assert max(settled) > 1.05 * min(settled)  # or there would be nothing to sweep
    assert min(later) < 1.01 * min(settled)
