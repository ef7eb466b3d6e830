"""Try the drawn attacks again with an ordinary user's grader, if root runs the tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ordinary_user import as_an_ordinary_user

CORPUS = ("test_archives.py", "test_attacks.py")
HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.skipif(os.geteuid() != 0, reason="these tests already run as an ordinary user")
def test_an_ordinary_users_grader_withstands_the_same_attacks():
    pytest_itself = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest_itself += ["-m", "not slow"]
    done = subprocess.run(
        [*as_an_ordinary_user(ROOT), *pytest_itself, *(str(HERE / name) for name in CORPUS)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    only_root_makes_devices = r"^[0-9]+ passed, 1 skipped, [0-9]+ deselected in "
    assert re.search(only_root_makes_devices, done.stdout, re.MULTILINE), output
