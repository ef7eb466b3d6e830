"""A module that is missing: a package that was not installed, or a part of Python, on Windows."""

import subprocess
import sys

import pytest

COMMAND = "sys.argv = ['gradsync', *{0!r}]; from gradsync.cli import main; main()"


def without(modules, code, folder):
    """Run code in a process in which these modules can't be imported."""
    start = f"import sys; sys.modules |= dict.fromkeys({modules!r}); "
    return subprocess.run(
        [sys.executable, "-c", start + code],
        cwd=folder, check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_a_command_names_the_package_that_is_missing(tmp_path):
    ended = without(["jinja2"], COMMAND.format(["start", "mine"]), tmp_path)

    assert ended.returncode == 2
    assert "jinja2 is not installed" in ended.stderr
    assert "pip install 'gradsync[course]'" in ended.stderr


@pytest.mark.parametrize("command", [["check"], ["grade", "mine"], ["doctor"], ["train"]])
def test_a_command_that_needs_ranks_says_what_to_do_on_windows(command, tmp_path):
    ended = without(["fcntl", "resource"], COMMAND.format(command), tmp_path)

    assert ended.returncode == 2
    assert "gradsync: Ranks need Linux or macOS. On Windows, run `wsl" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_engine_says_what_to_do_on_windows(tmp_path):
    ended = without(["fcntl", "resource"], "from gradsync import run_ranks", tmp_path)

    assert "ModuleNotFoundError: Ranks need Linux or macOS. On Windows," in ended.stderr


@pytest.mark.parametrize("code", [COMMAND.format(["doctor"]), "from gradsync import run_ranks"])
def test_a_python_that_was_built_without_a_module_is_not_taken_for_windows(code, tmp_path):
    ended = without(["_ctypes"], code, tmp_path)

    assert ended.returncode == 1
    assert "_ctypes" in ended.stderr.splitlines()[-1]
    assert "Windows" not in ended.stderr


def test_scripts_are_reviewed_on_windows(tmp_path):
    (tmp_path / "mine.py").write_text("print(1)\n")
    ended = without(["fcntl", "resource"], COMMAND.format(["review", "mine.py"]), tmp_path)

    assert ended.returncode == 0, ended.stderr
