"""An endless loop and an endless sleep are distinguished; the loop is reported soon."""

import time

import pytest
from small_course import SUITE, write_course, write_submission

from gradsync import RankFailure, run_ranks
from gradsync.grading.grade import grade
from gradsync.grading.suite.time_budget import LEAST_COMPUTING
from gradsync.ranks import get_launcher
from gradsync.ranks.host.limits import ProcessorTime
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.task import Task
from gradsync.submission import read_submission


def loop(rank):
    while rank == 1:
        pass


def test_a_loop_ends_when_its_processor_time_is_used_up():
    began = time.monotonic()

    failure = observe(Task(loop, 2, processor_seconds=0.5, timeout=60), get_launcher()).failure

    assert time.monotonic() - began < 30
    assert (failure.status, failure.diagnosis.code) == ("timeout", "too-slow")
    assert failure.diagnosis.ranks == (1,)
    assert "0.5 s of processor time. Rank 1 is at test_processor_time.py:" in str(failure)
    assert "a loop that never ends" in failure.diagnosis.explanation


@pytest.mark.parametrize("launcher", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_sleep_is_not_reported_as_a_loop(launcher):
    with pytest.raises(RankFailure) as caught:
        run_ranks(lambda: time.sleep(60), 2, timeout=1.5, launcher=launcher)

    text = caught.value.observation.failure.diagnosis.explanation
    assert text.startswith("The ranks did not finish within 1.5 s. Rank 0 is at ")
    assert text.endswith("almost no processor time. Look for a sleep, or for a call that waits.")


def test_a_sleep_uses_no_processor_time():
    def rest():
        time.sleep(1.5)

    seen = observe(Task(rest, 2, processor_seconds=1.0), get_launcher())

    assert seen.failure is None


class RankProcesses:
    def __init__(self, *seconds):
        self.seconds = list(seconds)

    def ran(self):
        return dict(enumerate(self.seconds))


def test_earlier_processor_time_does_not_count():
    processes = RankProcesses(100.0, 3.0)
    budget = ProcessorTime(processes, 5.0)
    processes.seconds = [104.0, 7.0]

    assert not budget.over(1.0)
    assert budget.used() == {0: 4.0, 1: 4.0}


def test_one_rank_over_the_limit_is_enough():
    processes = RankProcesses(0.0, 0.0)
    budget = ProcessorTime(processes, 5.0)
    processes.seconds = [5.1]

    assert budget.over(1.0)


@pytest.mark.parametrize("audience", ["visible", "hidden"])
def test_an_endless_loop_is_ended_by_its_processor_time(tmp_path, audience):
    suite = SUITE.replace("[10, 100]", "[10]").replace(
        "ranks(probe, 1,", "ranks(probe, 1, timeout=15,"
    )
    course = write_course(tmp_path / "course", suite)
    hidden = course.root / "tests" / "hidden"
    hidden.rename(hidden.with_name(audience))
    source = "def double(number):\n    while True:\n        pass\n"
    folder = write_submission(tmp_path / "ada" / "phase1", source).parent
    own = read_submission(folder, course, "ada")

    report = grade(own, course, phases=["phase1"], seed=3, audience=audience, parallel=1)

    [verdict] = report.verdicts
    assert verdict.status == "timeout"
    assert f"{LEAST_COMPUTING:g} s of processor time. Rank 0 is at template_" in verdict.message
    assert "a loop that never ends" in verdict.message
