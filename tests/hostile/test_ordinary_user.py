"""All of the corpus once more, where root runs the tests: against an ordinary user's grader."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ordinary_user import as_an_ordinary_user

CORPUS = ("test_archives.py", "test_attacks.py")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is running the corpus as it is")
def test_an_ordinary_users_grader_withstands_all_of_it():
    pytest_itself = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*as_an_ordinary_user(ROOT), *pytest_itself, *(str(HERE / name) for name in CORPUS)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    only_root_makes_devices = r"^[0-9]+ passed, 1 skipped in "
    assert re.search(only_root_makes_devices, done.stdout, re.MULTILINE), told
