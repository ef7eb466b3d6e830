"""A repository outside of this one tests its package with the wheel, xdist and coverage."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from counted_lines import counted_lines

from gradsync.course.catalogue import Course
from gradsync.course.release.contents import release_files

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
import os

import gradsync
import pytest
import torch
from averages import average

def test_it_is_the_wheel(request):
    assert gradsync.__file__.startswith(os.environ["PYTHONPATH"])

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    wheels = tmp_path_factory.mktemp("wheels")
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, *build, "--wheel-dir", str(wheels), str(ROOT)], check=True)
    [wheel] = wheels.glob("gradsync-*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder of packages with the contents of the wheel."""
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.mark.slow
def test_it_is_as_small_as_the_page_on_installation_says(wheel):
    assert "a wheel of 3 MB" in (ROOT / "docs/install.md").read_text(encoding="utf-8")
    assert wheel.stat().st_size < 3.5e6


@pytest.mark.slow
def test_its_page_on_pypi_has_no_link_that_needs_the_repository(wheel):
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
        links = re.findall(r"\]\(([^)]*)\)", packed.read(name).decode())

    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.slow
def test_it_carries_the_whole_course(site):
    whole, carried = Course(ROOT), Course(site / "gradsync_course")

    expected = release_files(whole, whole.phases, self_study=True)

    assert release_files(carried, carried.phases, self_study=True) == expected


@pytest.mark.slow
def test_its_tests_pass_and_lines_that_ranks_run_are_counted(site, tmp_path):
    project = tmp_path / "project"
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
