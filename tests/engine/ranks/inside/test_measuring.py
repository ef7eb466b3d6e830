"""coverage.py counts the lines that only ranks run."""

import os
import subprocess
import sys

import coverage

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

    files = sorted(tmp_path.glob(".coverage.*"))
    data = coverage.CoverageData(str(tmp_path / "whole"))
    for file in files:
        part = coverage.CoverageData(str(file))
        part.read()
        data.update(part)
    lines = set(data.lines(str(tmp_path / "program.py")) or ())
    assert {6, 8} <= lines
    assert 10 not in lines
