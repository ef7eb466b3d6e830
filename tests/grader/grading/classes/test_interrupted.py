"""`gradsync grade` on a class: killed, interrupted, without ranks, refused."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock
from processes import descendants_of, eventually, is_alive, linux_only
from small_course import RIGHT, SLOW, WRONG, write_course, write_submission

from gradsync.grading.store import LOCK

HERE = Path(__file__).parent


@pytest.fixture
def typed(tmp_path):
    """Start `gradsync grade class --out OUT` on a class of three; bob's submission is slow."""
    course = write_course(tmp_path / "course")
    for name, source in {"ada": WRONG, "bob": SLOW, "cleo": RIGHT}.items():
        write_submission(tmp_path / "class" / name, source)
    started = []
    with tempfile.TemporaryDirectory() as temporary:

        def start(out, *options):
            arguments = ["grade", tmp_path / "class", "--out", tmp_path / out, *options]
            arguments += ["--unsafe-no-sandbox"]  # bob waits for a file outside the sandbox
            process = subprocess.Popen(
                [sys.executable, "-m", "gradsync", *map(str, arguments)],
                cwd=course.root,
                env={**os.environ, "TMPDIR": temporary, "PYTHONPATH": str(HERE.parents[3])},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started.append(process)
            return process

        start.hurry = course.root / "hurry"
        start.temporary = Path(temporary)
        start.root = tmp_path
        yield start
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()


def at_work_on_bob(grader, out):
    """Wait until ada is graded and ranks run bob; return the ids of the grader's processes."""
    assert eventually((out / "ada" / "report.json").exists)
    for number in (10, 100)[: len(os.sched_getaffinity(0))]:
        assert eventually((out.parent / "course" / f"at-work-{number}").exists)
    return list(descendants_of(grader.pid))


def identity(path):
    return path.stat().st_ino, path.stat().st_mtime_ns


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_grader_leaves_nothing_and_can_be_continued(typed, jobs):
    out = typed.root / "out"
    grader = typed("out", "--seed", 5, "--jobs", jobs)
    family = at_work_on_bob(grader, out)
    grader.kill()
    finished = identity(out / "ada" / "report.json")
    gone = eventually(lambda: not any(map(is_alive, family)))
    typed.hurry.touch()
    said = typed("out").communicate()[0]
    typed("undisturbed", "--seed", 5).communicate()

    assert gone
    assert identity(out / "ada" / "report.json") == finished
    assert re.search("(2 graded, 1|1 graded, 2) unchanged \\(--fresh", said)
    books = [(typed.root / name / "gradebook.csv").read_text() for name in ("out", "undisturbed")]
    assert books[0] == books[1]
    assert list(typed.temporary.iterdir()) == []


@linux_only
def test_ctrl_c_keeps_finished_grades_and_says_how_to_continue(typed):
    out = typed.root / "out"
    grader = typed("out", "--jobs", 1)
    at_work_on_bob(grader, out)
    grader.send_signal(signal.SIGINT)
    said = grader.communicate()[0]

    assert grader.returncode == 130
    assert "Run the same command again to continue" in said
    lines = (out / "gradebook.csv").read_text().splitlines()[1:]
    assert [line.split(",")[4] for line in lines] == ["graded", "not-graded", "not-graded"]
    assert list(typed.temporary.iterdir()) == []


@linux_only
def test_lost_ranks_are_an_error_of_the_grader(typed):
    grader = typed("out", "--jobs", 1)
    [warm, *_] = at_work_on_bob(grader, typed.root / "out")
    os.kill(warm, signal.SIGKILL)
    said = grader.communicate()[0]

    assert grader.returncode == 3
    assert "bob could not be graded: the process that forks the ranks has ended" in said
    assert "bob,,,,grader-failed," in (typed.root / "out" / "gradebook.csv").read_text()


def test_a_second_grader_in_the_same_folder_is_refused(typed):
    (typed.root / "out").mkdir()
    with FileLock(typed.root / "out" / LOCK):
        second = typed("out")
        said = second.communicate()[0]

    assert second.returncode == 2
    assert "Another grader is writing to" in said
