"""How a suite is run on a submission."""

from small_course import write_course

from gradsync.grading import grade
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
