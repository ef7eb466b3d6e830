"""Several tests of a suite at a time: the same verdicts, and no processes are left."""

import os
import signal
import threading
import time
from collections import Counter

import pytest
from processes import descendants_of, linux_only
from small_course import RIGHT, write_course

from gradsync.errors import GraderError
from gradsync.grading.grade import grade
from gradsync.grading.suite.parallel import Turns, count_parallel_tests, forked_graders
from gradsync.ranks import LauncherError, get_launcher, run_ranks
from gradsync.ranks.host.launchers import packets
from gradsync.ranks.sandbox.sandbox import TASKS
from gradsync.submission import Submission

pytestmark = linux_only
FILE = "phase1/template_trainer.py"
SUITE = '''
import os
import time
from pathlib import Path

import pytest

from gradsync.ranks import LauncherError
from gradsync.testing import check, exercise


@pytest.mark.parametrize("number", range(6))
@exercise("phase1/double", points=6)
def test_a_number_is_doubled(ranks, number):
    """A number comes back twice as large."""
    seen = ranks(lambda trainer, number: trainer.double(number), 1, number=number)

    check(seen[0] == 2 * number, "not-doubled", f"{number} is not twice as large")
'''
MEETING = '''

@pytest.mark.parametrize("me", [0, 1])
@exercise("phase1/double", points=2)
def test_two_are_at_work(me):
    """Each of two tests waits for the other one."""
    here = Path(__file__).parent
    (here / f"came-{me}").touch()
    until = time.monotonic() + 30
    while time.monotonic() < until and not (here / f"came-{1 - me}").exists():
        time.sleep(0.01)

    check((here / f"came-{1 - me}").exists(), "alone", "nobody came")
'''
LOST = '''

@pytest.mark.parametrize("me", [0, 1])
@exercise("phase1/double", points=2)
def test_the_ranks_are_lost_beside_the_grader(me):
    """One of two processes loses its ranks."""
    here = Path(__file__).parent
    if os.getpid() != int((here / "grader").read_text()):
        raise LauncherError("no more processes")
    time.sleep(0.5)  # so that the other process starts the second of these tests
'''
BROKEN = '''

@exercise("phase1/double", points=2)
def test_no_answer_can_pass():
    """A name in this test is misspelt."""
    chekc(True, "fine", "all is well")
'''
STOPPING = '''

@pytest.mark.parametrize("number", range(30))
@exercise("phase1/double", points=2)
def test_the_first_fails(number):
    """The other tests are slow."""
    check(number > 0, "first", "the first one")
    time.sleep(0.1)
'''


@pytest.fixture
def graded(tmp_path):
    """Grade a file with a suite of six tests, and more."""

    def graded(source, more="", **options):
        course = write_course(tmp_path, SUITE + more)
        (tmp_path / "tests/hidden/phase1/grader").write_text(str(os.getpid()))
        submission = Submission("ada", {FILE: source.encode()})
        return grade(submission, course, phases=["phase1"], seed=1, **options)

    return graded


@pytest.mark.parametrize("launcher", ["fork", "sandbox"])
def test_the_verdicts_are_the_same_as_with_one_test_at_a_time(graded, launcher, request):
    if launcher == "sandbox":
        request.getfixturevalue("needs_sandbox")
    squares = "def double(number):\n    return number * number\n"

    one, three = (graded(squares, launcher=launcher, parallel=count) for count in (1, 3))

    seen = [[(v.id, v.points, v.message) for v in report.verdicts] for report in (one, three)]
    assert seen[0] == seen[1]
    assert [v.id for v in three.verdicts if v.points] == [three.verdicts[i].id for i in (0, 2)]


def test_tests_run_at_the_same_time(graded):
    report = graded("def double(number):\n    return 2 * number\n", MEETING, parallel=2)

    assert report.score == report.max_score == pytest.approx(100)


def test_the_first_failure_ends_all_with_exitfirst(graded):
    report = graded(RIGHT, STOPPING, parallel=2, pytest_options=["--exitfirst"])

    assert [v.status for v in report.verdicts].count("failed") == 1
    assert len(report.verdicts) < 6 + 30


def test_ranks_lost_by_a_worker_are_an_error_of_the_grader(graded):
    with pytest.raises(GraderError, match="no more processes"):
        graded("def double(number):\n    return 2 * number\n", LOST, parallel=2)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_broken_test_is_an_error_of_the_grader(graded, parallel):
    with pytest.raises(
        GraderError,
        match=r"is broken: tests/hidden/phase1/test_trainer.py:\d+ \(NameError: .*chekc",
    ):
        graded(RIGHT, BROKEN, parallel=parallel)


def test_a_suite_that_can_not_be_imported_gives_no_grade(graded, tmp_path):
    (tmp_path / "tests/hidden/phase1").mkdir(parents=True)
    (tmp_path / "tests/hidden/phase1/test_broken.py").write_text("import nothing_like_that")

    with pytest.raises(GraderError, match="nothing_like_that"):
        graded("def double(number):\n    return 2 * number\n", parallel=2)


def test_only_the_warm_process_remains(graded):
    run_ranks(os.getpid, 1)
    before = list(descendants_of(os.getpid()))

    graded("def double(number):\n    return 2 * number\n", parallel=3)

    assert list(descendants_of(os.getpid())) == before


def test_a_process_with_threads_is_not_forked():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    count = count_parallel_tests()
    done.set()
    thread.join()

    assert count == 1


def test_each_number_is_taken_once():
    launcher, turns = get_launcher("fork"), Turns(5_000)

    with forked_graders(2, launcher, lambda: list(turns)) as others:
        taken = [list(turns), *(other.result() for other in others)]
    turns.close()

    assert Counter(number for own in taken for number in own) == Counter(range(5_000))


def test_a_worker_that_ends_early_is_reported():
    with (
        forked_graders(1, get_launcher("fork"), lambda: os._exit(3)) as [worker],
        pytest.raises(LauncherError, match=r"exit status 3\)"),
    ):
        worker.result()


@pytest.mark.parametrize("moment", [0, 1])
def test_no_worker_outlives_ctrl_c_while_it_starts(moment, monkeypatch):
    """The moments: the answer of the sibling, and the fork."""
    launcher, receive, fork = get_launcher("fork"), packets.receive, os.fork
    run_ranks(os.getppid, 1)  # the warm process runs
    before = launcher._process

    def interrupted(control):
        monkeypatch.setattr(packets, "receive", receive)
        raise KeyboardInterrupt

    def forked():
        if child := fork():
            signal.raise_signal(signal.SIGINT)
        return child

    if moment == 0:
        monkeypatch.setattr(packets, "receive", interrupted)
    else:
        monkeypatch.setattr(os, "fork", forked)
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        forked_graders(1, launcher, lambda: time.sleep(60.0)),
    ):
        pass

    assert caught.value.__traceback__  # its frames are alive, with all that they refer to
    assert launcher._process is before  # it has answered: no sibling was waited for in vain


def test_a_worker_has_its_own_ranks():
    launcher = get_launcher("fork")

    with forked_graders(1, launcher, lambda: run_ranks(os.getppid, 1)[0]) as [other]:
        warm, own = other.result(), run_ranks(os.getppid, 1)[0]

    assert warm != own


def test_each_worker_has_the_limits_of_a_run(needs_sandbox):
    def start_threads():
        for _ in range(TASKS * 2 // 3):
            threading.Thread(target=time.sleep, args=[60.0], daemon=True).start()
        time.sleep(1.0)  # while the other worker's ranks start their threads
        return threading.active_count()

    def run():
        return run_ranks(start_threads, 1, launcher="sandbox", timeout=30)[0]

    with forked_graders(1, get_launcher("sandbox"), run) as [other]:
        started = [run(), other.result()]

    assert min(started) > TASKS / 2  # together, more than one run may start
