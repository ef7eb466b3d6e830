"""Repeated timeouts: later tests have less time, and then none."""

import os

import pytest
from small_course import write_course

from gradsync.grading.grade import grade
from gradsync.grading.root_causes import explain_not_run
from gradsync.grading.suite.time_budget import ALLOWED, PART, SECONDS, NotRun, TimeBudget
from gradsync.submission import Submission

NEEDS = {"p/average": (), "p/step": ("p/average",), "p/train": ("p/step",), "p/other": ()}
LIMIT = 20.0


@pytest.fixture
def budget():
    return TimeBudget(NEEDS)


def test_without_timeouts_a_test_has_its_full_time(budget):
    assert [budget.limit(exercise, LIMIT) for exercise in NEEDS] == [LIMIT] * 4


def test_after_a_timeout_dependent_tests_have_a_part_of_their_time(budget):
    budget.note("p/average", LIMIT)

    assert budget.limit("p/average", LIMIT) == LIMIT * PART
    assert budget.limit("p/train", LIMIT) == LIMIT * PART
    assert budget.limit("p/other", LIMIT) == LIMIT


def test_an_exercise_with_several_timeouts_is_not_run(budget):
    for _ in range(ALLOWED):
        budget.note("p/average", 1.0)

    with pytest.raises(NotRun):
        budget.limit("p/average", LIMIT)
    assert budget.limit("p/step", LIMIT) == LIMIT * PART


def test_one_timeout_is_enough_after_a_timeout_of_a_dependency(budget):
    budget.note("p/average", 1.0)
    budget.note("p/step", 1.0)

    with pytest.raises(NotRun):
        budget.limit("p/step", LIMIT)


def test_without_time_left_every_test_has_a_part_and_one_timeout(budget):
    budget.note("p/average", SECONDS)

    assert budget.limit("p/other", LIMIT) == LIMIT * PART
    budget.note("p/other", LIMIT * PART)
    with pytest.raises(NotRun):
        budget.limit("p/other", LIMIT)


def test_a_promised_limit_is_not_reduced_by_timeouts_of_other_exercises(budget):
    budget.note("p/average", SECONDS)

    assert budget.limit("p/other", 2 * SECONDS, promised=True) == 2 * SECONDS
    assert budget.limit("p/train", 2 * SECONDS, promised=True) == 2 * SECONDS


def test_a_promised_limit_is_reduced_after_a_timeout_of_its_own_exercise(budget):
    budget.note("p/other", LIMIT)

    assert budget.limit("p/other", LIMIT, promised=True) == LIMIT * PART


def test_forks_share_the_counts(budget):
    pid = os.fork()
    if pid == 0:
        budget.note("p/average", LIMIT)
        os._exit(0)
    os.waitpid(pid, 0)

    assert budget.limit("p/average", LIMIT) == LIMIT * PART


SUITE = '''
import pytest

from gradsync.testing import check, exercise


@pytest.mark.parametrize("number", range(8))
@exercise("phase1/double", points=8)
def test_a_number_is_doubled(ranks, number):
    """A number comes back twice as large."""

    def probe(trainer, number):
        return trainer.double(number)

    seen = ranks(probe, 1, process_group=False, number=number, timeout=3.0)

    check(seen[0] == 2 * number, "not-doubled", "it is not twice as large")
'''


def graded(tmp_path, source):
    course = write_course(tmp_path, SUITE)
    submission = Submission("ada", {"phase1/template_trainer.py": source.encode()})
    return grade(submission, course, phases=["phase1"], seed=1, parallel=1).verdicts


def test_an_endless_loop_times_out_twice_and_is_then_named_as_the_cause(tmp_path):
    verdicts = graded(tmp_path, "def double(number):\n    while True: pass\n")
    run = [verdict for verdict in verdicts if verdict.world_size]
    messages = {verdict.message for verdict in verdicts if not verdict.world_size}

    assert len(run) == ALLOWED
    assert {(verdict.status, verdict.points) for verdict in verdicts} == {("timeout", 0.0)}
    assert {verdict.diagnosis.where for verdict in verdicts} == {run[0].diagnosis.where}
    assert (
        "The time limit of this test is usually 3 s. It was shorter here because" in run[1].message
    )
    assert "usually" not in run[0].message
    assert {v.diagnosis.explanation for v in verdicts if not v.world_size} == messages
    assert messages == {
        'This test was not run because another one, "A number comes back twice as large", '
        "reached its time limit. Fix the mistake there first."
    }


def test_an_endless_loop_in_one_case_does_not_affect_other_cases(tmp_path):
    source = "def double(number):\n    while number == 1:\n        pass\n    return 2 * number\n"
    points = [verdict.points for verdict in graded(tmp_path, source)]

    assert points == [12.5, 0.0, *[12.5] * 6]


def test_verdicts_of_tests_that_ran_are_not_changed(tmp_path):
    verdicts = graded(tmp_path, "def double(number):\n    return 2 * number\n")

    assert explain_not_run(verdicts) == verdicts
