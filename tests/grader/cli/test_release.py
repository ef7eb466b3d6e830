"""`gradsync release`, and the commands in a learner's copy."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from learners_copy import write_whole_course

from gradsync.course.catalogue import Course


def gradsync(cwd, *arguments):
    command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a course, its release, and its release for self-study."""
    root = tmp_path_factory.mktemp("made")
    course = write_whole_course(root / "course")
    entry = (course.root / "phase1/exercises.toml").read_text()
    for folder in ("phase2", "solutions/phase2", "tests/visible/phase2", "tests/hidden/phase2"):
        (course.root / folder).mkdir(parents=True)
    (course.root / "phase2/exercises.toml").write_text(entry)
    for path in ("solutions/phase1/template_trainer.py", "tests/visible/phase1/test_doubling.py"):
        text = (course.root / path).read_text().replace("phase1", "phase2")
        (course.root / path.replace("phase1", "phase2")).write_text(text)
    for options in (["copy"], ["own", "--self-study"]):
        done = gradsync(course.root, "release", root / options[0], *options[1:])
        assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def course(made, tmp_path):
    return Course(shutil.copytree(made / "course", tmp_path / "course"))


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made / "copy", tmp_path / "copy")


@pytest.fixture
def own(made, tmp_path):
    return shutil.copytree(made / "own", tmp_path / "own")


def test_a_later_phase_is_added_to_an_earlier_release(course, tmp_path):
    first = gradsync(course.root, "release", tmp_path / "copy", "--phase", 1)
    had = (tmp_path / "copy/phase2").exists()
    second = gradsync(course.root, "release", tmp_path / "copy", "--phase", 2)
    third = gradsync(course.root, "release", tmp_path / "copy", "--phase", 1)

    assert not had
    assert f"{tmp_path / 'copy'}: phase1, " in first.stdout
    assert f"{tmp_path / 'copy'}: phase1 and phase2, " in second.stdout
    assert second.stdout.splitlines()[-1] == third.stdout.splitlines()[-1]


def test_an_archive_has_the_same_bytes_each_time_and_no_edits(course, copy):
    def archived():
        done = gradsync(course.root, "release", copy, "--zip")
        assert done.returncode == 0, done.stderr
        return copy.with_name("copy.zip").read_bytes()

    first = archived()
    (copy / "phase1/template_trainer.py").write_text("my work")
    second = archived()

    names = zipfile.ZipFile(copy.with_name("copy.zip")).namelist()
    assert first == second
    assert "copy/phase1/template_trainer.py" in names
    assert "copy/.gradsync-release.json" in names


def test_a_kept_file_is_named_with_the_reason(course, copy):
    (copy / "phase1/template_trainer.py").write_text("my work")
    solution = course.root / "solutions/phase1/template_trainer.py"
    solution.write_text(solution.read_text().replace("Twice a number.", "Two times a number."))

    done = gradsync(course.root, "release", copy)

    kept = copy / "phase1/template_trainer.py"
    assert f"kept {kept}: it was edited. The new version is in {kept}.new." in done.stdout
    assert kept.read_text() == "my work"


@pytest.mark.slow
def test_a_learner_solves_the_exercise_in_the_copy(copy):
    before = gradsync(copy, "check", "--exit-code")
    template = copy / "phase1/template_trainer.py"
    stub = 'raise NotImplementedError("phase1/double")'
    unwritten = template.read_text()
    template.write_text(unwritten.replace(stub, "return number"))
    wrong = gradsync(copy, "check", "phase1/double")
    template.write_text(unwritten.replace(stub, "return 2 * number"))
    after = gradsync(copy, "check", "phase1/double", "--exit-code")

    assert (before.returncode, after.returncode) == (1, 0), after.stdout + after.stderr
    assert "1 still to write" in before.stdout
    assert "✓ double" in after.stdout
    assert after.stdout.endswith("For your next step: gradsync check phase1\n")
    assert "next step" not in wrong.stdout
    assert "gradsync explain" not in before.stdout + after.stdout
    assert wrong.stdout.count("gradsync explain not-doubled") == 1
    assert "Add it to itself." in gradsync(copy, "hint", "double").stdout
    assert "return number * 2" in gradsync(copy, "explain", "not-doubled").stdout


@pytest.mark.parametrize("arguments", [("grade", ".", "--phase", 2), ("demo",)])
def test_grading_in_the_copy_points_to_check(copy, arguments):
    done = gradsync(copy, *arguments)

    assert done.returncode == 2
    assert "no hidden tests" in done.stderr
    assert "not part of a learner's copy. Run `gradsync check`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("templates",), "has no solution from which to make phase1/template_trainer.py"),
        (("release", "again"), "is a learners' copy, without solutions"),
    ],
)
def test_commands_for_authors_say_why_they_do_not_work_in_the_copy(copy, arguments, reason):
    done = gradsync(copy, *arguments)

    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.parametrize("out", [".", "..", "phase1"])
def test_the_course_itself_is_not_overwritten(course, out):
    done = gradsync(course.root, "release", out)

    assert done.returncode == 2
    assert "Choose" in done.stderr


def test_an_unusable_course_file_is_explained_before_anything_is_written(course, tmp_path):
    (course.root / "course.toml").write_text("[late]\nper_day = 10\n")

    done = gradsync(course.root, "release", tmp_path / "copy")

    assert done.returncode == 2
    assert "course.toml: per_day in [late] must be" in done.stderr
    assert not (tmp_path / "copy").exists()


def written(folder, body):
    """Write the exercise of phase 1 with this body, with a comment and a helper."""
    text = (folder / "phase1/template_trainer.py").read_text()
    stub = 'raise NotImplementedError("phase1/double")'
    mine = f"{body}\n\n\n# My helper.\ndef same(number):\n    return number"
    (folder / "phase1/template_trainer.py").write_text(text.replace(stub, mine))


def test_a_copy_for_self_study_has_hidden_tests_and_solutions(course, own, copy):
    more = {
        path.relative_to(own).as_posix()
        for path in own.rglob("*")
        if path.is_file() and not (copy / path.relative_to(own)).exists()
    }
    plainly = gradsync(course.root, "release", own)

    assert more == {
        "solutions/phase1/template_trainer.py",
        "solutions/phase2/template_trainer.py",
        "tests/hidden/phase1/test_trainer.py",
    }
    assert "gradsync check --all" in (own / "README.md").read_text()
    assert "begin with `gradsync check`" in (own / "README.md").read_text()
    assert "gradsync check --all" not in (copy / "README.md").read_text()
    assert "gradsync update NEWER.zip" in (copy / "README.md").read_text()
    assert plainly.returncode == 2
    assert "is a copy for self-study, with solutions" in plainly.stderr


@pytest.mark.slow
def test_a_copy_for_self_study_releases_the_copy_for_learners(course, own, copy, tmp_path):
    """So a lecturer needs no clone to hand out a title, a due time or a test of their own."""
    (own / "phase1/template_trainer.py").write_text("an answer of the lecturer")
    (own / "course.toml").write_text('[course]\ntitle = "Week 3"')

    done = gradsync(own, "release", tmp_path / "from_own")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Changed since `gradsync start`: course.toml\n" in done.stdout
    (course.root / "course.toml").write_text('[course]\ntitle = "Week 3"')
    assert gradsync(course.root, "release", copy).returncode == 0
    first, second = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (tmp_path / "from_own", copy)
    )
    for files in (first, second):
        del files[Path(".gradsync-release.json")]  # an update's has the former versions, too
    assert first == second


def test_a_release_names_what_staff_changed_in_their_copy(own, tmp_path):
    """Such as notebooks in which they tried the exercises themselves."""
    tried = own / "notebooks/exercises/phase1.ipynb"
    run = {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "source": []}
    notebook = json.loads(tried.read_text())
    tried.write_text(json.dumps({**notebook, "cells": [*notebook["cells"], run]}))
    (own / "README.md").unlink()

    done = gradsync(own, "release", tmp_path / "from_own")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Changed since `gradsync start`: notebooks/exercises/phase1.ipynb\n" in done.stdout


def test_check_all_ticks_only_what_the_hidden_tests_pass_too(own):
    # The visible test asks for twice 2, the hidden ones for other numbers, too.
    written(own, "return same(number) + 2")
    visible = gradsync(own, "check", "phase1")
    both = gradsync(own, "check", "phase1", "--all")
    (own / "phase1/template_trainer.py").write_text("""def double(number):
    return None if number is None else 2 * number
""")
    right = gradsync(own, "check", "phase1/double", "--all")

    assert "✓ double" in visible.stdout
    assert "The hidden tests, which give the points, check the" in visible.stdout
    assert "✗ double" in both.stdout
    assert "gradsync check double --all shows the details" in both.stdout
    assert "All tests pass, including the hidden tests" in right.stdout


@pytest.mark.slow
def test_a_solution_is_shown_beside_ones_own_after_it_passes(own):
    written(own, "return same(number) + 2")
    early = gradsync(own, "solution", "phase1/double")
    anyway = gradsync(own, "solution", "phase1/double", "--anyway")

    assert early.returncode == 1
    assert "secret" not in early.stdout
    assert "Your phase1/double passes" in early.stderr
    assert "add --anyway" in early.stderr
    for line in ("return same(number) + 2", "# My helper.", "secret = number"):
        assert line in anyway.stdout
    assert "SOLUTION" not in anyway.stdout


def test_a_copy_without_solutions_says_so(copy):
    done = gradsync(copy, "solution", "phase1/double", "--anyway")

    assert done.returncode == 2
    assert "This copy of the course has no solutions." in done.stderr


def test_help_shows_learners_their_commands_only(course, copy, own):
    staff, learner, alone = (gradsync(at, "--help").stdout for at in (course.root, copy, own))

    assert "Teach a course" in staff
    assert "Teach a course" not in learner + alone
    assert " grade " not in learner + alone
    for command in ("check", "hint", "explain", "train", "trace", "doctor", "review"):
        assert f" {command} " in learner
    assert " solution " in staff
    assert " solution " in alone
    assert " solution " not in learner


@pytest.mark.slow
def test_a_name_of_two_phases_is_checked_in_both(copy):
    both = gradsync(copy, "check", "double")
    hint = gradsync(copy, "hint", "double")
    one = gradsync(copy, "check", "phase2")

    assert "double is an exercise of phase1 and phase2: checking both." in both.stderr
    assert both.stdout.count("double") >= 2
    assert "For phase2: gradsync hint phase2/double" in hint.stderr
    assert "checking phase1" not in one.stderr


def test_a_learner_updates_a_copy_with_the_new_archive(course, copy, tmp_path):
    (copy / "phase1/template_trainer.py").write_text("my work")
    guide = course.root / "course.toml"
    guide.write_text('[course]\ntitle = "Newer"\n')
    gradsync(course.root, "release", tmp_path / "newer", "--zip")
    done = gradsync(copy, "update", tmp_path / "newer.zip")
    again = gradsync(copy, "update", tmp_path / "newer.zip")

    assert done.returncode == 0, done.stderr
    assert "updated" in done.stdout
    assert (copy / "phase1/template_trainer.py").read_text() == "my work"
    assert (copy / "README.md").read_text().startswith("# Newer")
    assert "is up to date." in again.stdout
