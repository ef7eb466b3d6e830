"""coverage.py counts the lines that only ranks run."""

import os
import subprocess
import sys

from counted_lines import counted_lines

PROGRAM = """
from gradsync import run_ranks

def work(rank):
    if rank == 0:
        text = "only rank 0 is here"
    elif rank == 1:
        text = "only rank 1 is here"
    else:
        text = "nobody is here"
    return text

run_ranks(work, 2)
"""


def test_lines_of_ranks_are_counted(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "settings").write_text("[run]\nparallel = true\nsource = .\n")
    environ = {**os.environ, "COVERAGE_PROCESS_START": str(tmp_path / "settings")}

    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=environ, check=True)

    lines = counted_lines(tmp_path, tmp_path / "program.py")
    assert {6, 8} <= lines
    assert 10 not in lines
