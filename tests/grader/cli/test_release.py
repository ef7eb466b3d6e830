"""`gradsync release`, and the commands in a learner's copy."""

import subprocess
import sys
import zipfile

import pytest
from learners_copy import write_whole_course


def gradsync(cwd, *arguments):
    command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)


@pytest.fixture
def course(tmp_path):
    made = write_whole_course(tmp_path / "course")
    entry = (made.root / "phase1/exercises.toml").read_text()
    for folder in ("phase2", "solutions/phase2", "tests/visible/phase2", "tests/hidden/phase2"):
        (made.root / folder).mkdir(parents=True)
    (made.root / "phase2/exercises.toml").write_text(entry)
    for path in ("solutions/phase1/template_trainer.py", "tests/visible/phase1/test_doubling.py"):
        text = (made.root / path).read_text().replace("phase1", "phase2")
        (made.root / path.replace("phase1", "phase2")).write_text(text)
    return made


@pytest.fixture
def copy(course, tmp_path):
    done = gradsync(course.root, "release", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    return tmp_path / "copy"


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
    wrong = gradsync(copy, "check", "double")
    template.write_text(unwritten.replace(stub, "return 2 * number"))
    after = gradsync(copy, "check", "double", "--exit-code")

    assert (before.returncode, after.returncode) == (1, 0), after.stdout + after.stderr
    assert "1 still to write" in before.stdout
    assert "✓ double" in after.stdout
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
        (("release", "again"), "is itself a learners' copy"),
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
