"""The documentation is built without a warning, and has a page for each code, rule and command."""

import subprocess
import sys
from pathlib import Path

import pytest

from gradsync.cli.app import COMMANDS
from gradsync.course.catalogue import Course
from gradsync.course.codes import meanings
from gradsync.review.catalogue import RULES

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.xdist_group("one site, built in one process")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--fail-on-warning", "--keep-going", "-c", "docs")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ".", str(out)],
        check=False, cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return out


@pytest.mark.slow
def test_each_code_rule_and_command_has_a_page(site):
    codes = {f"docs/made/codes/{meaning.code}" for meaning in meanings(Course(ROOT))}
    rules = {f"gradsync/review/pages/{rule.code}" for rule in RULES}
    commands = {f"docs/made/commands/{name}" for name in COMMANDS}

    missing = [page for page in codes | rules | commands if not (site / f"{page}.html").is_file()]

    assert codes
    assert not missing


@pytest.mark.slow
def test_lessons_show_their_outputs(site):
    lesson = (site / "notebooks" / "04_averaging_gradients.html").read_text(encoding="utf-8")

    assert "cell_output" in lesson


@pytest.mark.slow
def test_the_address_without_a_page_leads_to_the_first_one(site):
    assert "docs/index.html" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "docs" / "index.html").is_file()
