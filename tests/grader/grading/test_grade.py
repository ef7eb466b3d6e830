"""Running a suite on a submission."""

import gc

import pytest
from small_course import RIGHT, SUITE, write_course

from gradsync.grading.grade import grade
from gradsync.grading.suite.run import SWEPT_AFTER
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
def test_the_first_value_is_freed(number):
    value = Seen()
    seen.append(weakref.ref(value))
    error = ValueError(value, locals())
    if number < 2 or seen[0]() is not None:  # Python itself keeps the last exception alive
        raise error
"""

NAMES = """
import socket
import time

from gradsync.testing import check, exercise


@exercise("phase1/double", points=1)
def test_names_are_looked_up_at_once(ranks):
    def probe():
        began = time.monotonic()
        try:
            socket.getnameinfo(("::ffff:127.0.0.1", 1), 0)
            return ["answered", time.monotonic() - began]
        except socket.gaierror:
            return ["no answer", time.monotonic() - began]

    [[answer, seconds]] = ranks(probe, 1, process_group=False)
    check(answer == "no answer" and seconds < 4, "slow", f"{answer} after {seconds:.1f} s")
"""


def test_a_graded_rank_does_not_wait_for_a_name_server(tmp_path):
    course = write_course(tmp_path, NAMES)
    submission = Submission("ada", {"phase1/template_trainer.py": b""})

    report = grade(submission, course, phases=["phase1"], seed=1, parallel=1)

    assert [verdict.message for verdict in report.verdicts] == [""]


def test_values_of_a_failed_test_are_freed(tmp_path):
    course = write_course(tmp_path, WITNESSES)
    submission = Submission("ada", {"phase1/template_trainer.py": b""})

    report = grade(submission, course, phases=["phase1"], seed=1, parallel=1)

    assert [verdict.status for verdict in report.verdicts] == ["error", "error", "passed"]


@pytest.mark.slow
def test_garbage_of_many_suites_is_collected(tmp_path):
    course = write_course(tmp_path)
    submission = Submission("ada", {"phase1/template_trainer.py": RIGHT.encode()})
    objects = []

    for _ in range(3 * SWEPT_AFTER):
        assert grade(submission, course, phases=["phase1"], seed=1, parallel=1).score == 100
        objects.append(len(gc.get_objects()))

    settled, later = objects[SWEPT_AFTER : 2 * SWEPT_AFTER], objects[2 * SWEPT_AFTER :]
    garbage = max(settled) - min(settled)
    assert garbage > 20_000  # objects; otherwise there is nothing to collect
    assert min(later) - min(settled) < garbage / 4


def test_each_grade_runs_the_current_tests_of_the_course(tmp_path):
    submission = Submission("ada", {"phase1/template_trainer.py": RIGHT.encode()})

    def count(folder, tests):
        numbers = ", ".join(map(str, range(100, 100 + tests)))
        course = write_course(tmp_path / folder, SUITE.replace("10, 100", numbers))
        return len(grade(submission, course, phases=["phase1"], seed=1, parallel=1).verdicts)

    assert [count("one", 2), count("another", 3), count("another", 5)] == [2, 3, 5]
