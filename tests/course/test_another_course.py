"""The files of docs/another-course.md make a course; test_shell_samples.py runs its commands."""

import json
import shutil
import subprocess
import sys

import pytest
from texts import ROOT, files_of

from gradsync.course.catalogue import Course
from gradsync.course.release.contents import release_files

FILES = files_of("docs/another-course.md")
EXERCISE = (
    "solutions/phase1/template_names.py",
    "phase1/exercises.toml",
    "tests/visible/phase1/test_names.py",
)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Course(root)


def test_the_page_shows_a_template_a_test_and_a_hint_in_about_20_lines():
    lines = [
        line
        for path in EXERCISE
        for line in FILES[path].splitlines()
        if line and not line.startswith("# ")
    ]

    assert "course.toml" in FILES
    assert len(lines) <= 24


def test_the_copy_for_learners_has_no_solution(course):
    files = release_files(course, ["phase1"])

    solution = FILES["solutions/phase1/template_names.py"].split("### ")[1].splitlines()[1].strip()
    assert [path for path, content in files.items() if solution.encode() in content] == []
    assert "tests/hidden/phase1/test_names.py" not in files


@pytest.mark.slow
def test_the_rule_of_the_page_names_the_mistake(course, tmp_path):
    root = tmp_path / "course"
    shutil.copytree(course.root, root)
    suite = root / "tests/hidden/phase1/test_names.py"
    text = suite.read_text().replace(
        "given=given), given)", "given=given), given, mistakes=[only_own_name])"
    )
    suite.write_text(f"from support.rules import only_own_name\n{text}")
    (root / "tests/support/__init__.py").touch()
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob/template_names.py").write_text("def gather_names(name):\n    return [name]\n")

    grade = ("grade", str(tmp_path / "bob"), "--out", str(tmp_path / "grades"))
    done = subprocess.run(
        [sys.executable, "-m", "gradsync", *grade, "--unsafe-no-sandbox"],
        cwd=root, check=False, capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "grades/bob/report.json").read_text())
    assert "names-not-gathered" in [test["diagnosis"]["code"] for test in report["tests"]]


def test_the_readme_links_to_the_page():
    assert "(docs/another-course.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
