"""`gradsync check` as a learner uses it: its activity line, and checks after each save."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from small_course import PLAIN_SUITE, RIGHT, write_course

from gradsync.cli.learn.checking import is_begun
from gradsync.course.catalogue import Course

TRAINER = "phase1/template_trainer.py"
TIME_LIMIT = 60.0
RIGHT_OF_NONE = f"{RIGHT.replace('return', 'return number and')}"  # it returns None for None


@pytest.fixture
def copy(tmp_path):
    """A learner's copy of a small course."""
    write_course(tmp_path, PLAIN_SUITE)
    (tmp_path / "tests" / "hidden").rename(tmp_path / "tests" / "visible")
    (tmp_path / TRAINER).write_text("def double(number):\n    pass\n")
    return tmp_path


@contextlib.contextmanager
def start(folder, *arguments, **streams):
    """Run a check, and kill it at the end."""
    command = [sys.executable, "-m", "gradsync", "check", *arguments]
    with subprocess.Popen(command, cwd=folder, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(descriptor, sign, *, already=""):
    """Return the output up to `sign`."""
    text, until = already, time.monotonic() + TIME_LIMIT
    while sign not in text:
        ready, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0))
        assert ready, f"{sign!r} did not appear in: {text}"
        piece = os.read(descriptor, 4096).decode(errors="replace")
        assert piece, f"the check ended, and {sign!r} did not appear in: {text}"
        text += piece
    return text


def test_watching_checks_after_each_save_and_ends_with_ctrl_c(copy):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(copy, "--watch", **pipes) as process:
        out = process.stdout.fileno()
        assert "to write" in read_until(out, "Watching for changes")

        (copy / TRAINER).write_text("def double(number:\n")
        seen = read_until(out, "Watching for changes")
        assert f"changed: {TRAINER}" in seen
        assert "syntax error in line 1" in seen

        # Some editors save in this way: they write a new file and rename it.
        (copy / "new.py").write_text(RIGHT_OF_NONE)
        os.replace(copy / "new.py", copy / TRAINER)  # noqa: PTH105
        assert "The visible tests pass" in read_until(out, "Watching for changes")

        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=TIME_LIMIT)

    assert process.returncode == 0
    assert b"Traceback" not in rest + errors


def test_ctrl_c_during_a_check_ends_watching(copy):
    (copy / TRAINER).write_text("import time\n\ntime.sleep(60)\n")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(copy, "--watch", **pipes) as process:
        read_until(process.stderr.fileno(), "checking phase1")
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=TIME_LIMIT)

    assert process.returncode == 0
    assert b"Traceback" not in rest + errors


def test_a_terminal_shows_the_running_test_and_then_removes_it(copy):
    ours, theirs = pty.openpty()
    with start(copy, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = read_until(ours, "Next: ")
        process.wait(timeout=TIME_LIMIT)
    os.close(ours)

    assert "checking phase1, starting ..." in seen
    assert "of 3: double ..." in seen
    assert seen.index("of 3: double ...") < seen.rindex("\x1b[2K") < seen.index("to write")


def test_outside_a_terminal_stdout_has_only_the_result(copy):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(copy, **pipes) as process:
        out, errors = process.communicate(timeout=TIME_LIMIT)

    assert "checking" not in out
    assert errors == "gradsync: checking phase1 ...\n"


def test_a_closed_pipe_causes_no_traceback(copy):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start(copy, **pipes) as process:
        process.stdout.close()
        errors = process.stderr.read()

    assert b"Traceback" not in errors
    assert b"failed" not in errors


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("doubel", "There is no exercise 'doubel'. Did you mean double?"),
        ("Double", "There is no exercise 'Double'. Did you mean double?"),
        ("phase1/dubble", "Did you mean phase1/double?"),
        ("phase7/double", "Name a phase (phase1) and an exercise, as in phase1/double."),
        ("evaluate", "The exercises are double"),
    ],
)
def test_an_unknown_name_gets_a_suggestion(copy, name, said):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(copy, name, **pipes) as process:
        _, errors = process.communicate(timeout=TIME_LIMIT)

    assert process.returncode == 2
    assert said in errors


@pytest.mark.parametrize(
    ("source", "begun"),
    [
        ('def double(number):\n    raise NotImplementedError("phase1/double")\n', False),
        (RIGHT, True),
        (None, True),  # reported as missing
    ],
    ids=["stub", "written", "no file"],
)
def test_a_phase_is_begun_once_a_stub_is_gone(copy, source, begun):
    if source is None:
        (copy / TRAINER).unlink()
    else:
        (copy / TRAINER).write_text(source)

    assert is_begun(Course(copy), "phase1") is begun
