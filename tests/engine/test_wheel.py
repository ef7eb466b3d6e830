"""A repository outside of this one tests its package with the wheel, xdist and coverage."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from counted_lines import counted_lines

ROOT = Path(__file__).parents[2]
FILES = {
    "pyproject.toml": """
[tool.pytest.ini_options]
pythonpath = ["src"]
testpaths = ["tests"]
""",
    "src/averages/__init__.py": """
import torch.distributed as dist

def average(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
""",
    "tests/conftest.py": """
import random
import pytest

def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=0)

@pytest.fixture
def rng(request):
    return random.Random(request.config.getoption("--seed"))
""",
    "tests/test_averages.py": """
import gradsync
import pytest
import torch
from averages import average

def test_it_is_the_wheel(request):
    assert "unpacked" in gradsync.__file__

def test_with_the_fixture(ranks, rng):
    numbers = [rng.random() for _ in range(3)]

    def run(rank):
        return average(torch.tensor(numbers[rank])).item()

    assert ranks(run, 3)[0] == pytest.approx(sum(numbers) / 3)

@pytest.mark.ranks(2, 4)
def test_with_the_mark(rank, world_size):
    assert average(torch.tensor(float(rank))) == (world_size - 1) / 2
""",
}


@pytest.mark.slow
def test_its_tests_pass_and_lines_that_ranks_run_are_counted(tmp_path):
    wheels, site, project = (tmp_path / name for name in ("wheels", "unpacked", "project"))
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    build += ["--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run([sys.executable, *build], check=True)
    [wheel] = wheels.glob("gradsync-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (project / "settings").write_text("[run]\nparallel = true\nsource = averages\n")
    environ = {
        **os.environ,
        "PYTHONPATH": str(site),
        "COVERAGE_PROCESS_START": str(project / "settings"),
    }

    command = [sys.executable, "-m", "pytest", "-n", "2", "--seed", "7", "-q"]
    done = subprocess.run(
        command, cwd=project, env=environ, capture_output=True, text=True, check=False
    )

    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert {5, 6} <= counted_lines(project, project / "src/averages/__init__.py")
