"""The examples of docs/engine.md print what the page says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```python\n(# (\S+\.py)\n.*?)^```", PAGE, re.M | re.S)
COMMANDS = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def examples(tmp_path):
    """A folder outside of the repository that has the files of the page."""
    for text, name in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_page_has_an_example_of_each_kind():
    assert [name for _, name in FILES] == ["step.py", "test_transpose.py", "skip.py"]
    assert [command.split()[0] for command, _ in COMMANDS] == ["python", "pytest", "python"]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_an_example_prints_what_the_page_says(command, printed, examples):
    program, *arguments = shlex.split(command)
    module = ["-m", "pytest"] if program == "pytest" else []

    ended = subprocess.run(
        [sys.executable, *module, *arguments],
        check=False,
        cwd=examples,
        capture_output=True,
        text=True,
    )

    assert without_times(ended.stdout) == without_times(printed), ended.stderr


def without_times(text: str) -> str:
    return re.sub(r"in \d+\.\d+s", "in N s", text)
