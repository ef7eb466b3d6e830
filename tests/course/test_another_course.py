"""The files and commands of docs/another-course.md make a course, as the page says."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradsync.course.catalogue import Course
from gradsync.course.release.contents import release_files

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "another-course.md").read_text(encoding="utf-8")
FILES = {
    path: text
    for text, path in re.findall(r"^```(?:python|toml)\n(# (\S+)\n.*?)^```", PAGE, re.M | re.S)
}
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", PAGE, re.M)
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


def run(command, folder):
    program, *arguments = shlex.split(command)
    assert program == "gradsync"
    if arguments[0] == "grade":
        arguments.append("--unsafe-no-sandbox")  # bubblewrap need not be installed here
    return subprocess.run(
        [sys.executable, "-m", "gradsync", *arguments],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_page_shows_a_template_a_test_and_a_hint_in_about_20_lines():
    lines = [
        line
        for path in EXERCISE
        for line in FILES[path].splitlines()
        if line and not line.startswith("# ")
    ]

    assert "course.toml" in FILES
    assert len(lines) <= 24


@pytest.mark.slow
def test_the_commands_of_the_page_print_what_it_says(course):
    folder = course.root
    for command, printed in COMMANDS:
        if command.startswith("cd "):
            folder /= command.removeprefix("cd ")
            continue
        done = run(command, folder)

        assert done.returncode == 0, done.stderr
        shown = " ".join(done.stdout.split())
        missing = [line for line in printed.splitlines() if " ".join(line.split()) not in shown]
        assert missing == [], f"{command} printed:\n{done.stdout}"


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

    done = run(f"gradsync grade {tmp_path / 'bob'} --out {tmp_path / 'grades'}", root)

    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "grades/bob/report.json").read_text())
    assert "names-not-gathered" in [test["diagnosis"]["code"] for test in report["tests"]]


def test_the_readme_links_to_the_page():
    assert "(docs/another-course.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
