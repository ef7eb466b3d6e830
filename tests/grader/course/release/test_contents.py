"""The files of a release: all that learners need, and nothing else."""

import json

import pytest
from learners_copy import notebook, write_whole_course

from gradsync.course.catalogue import CourseError
from gradsync.course.release.contents import release_files


@pytest.fixture
def course(tmp_path):
    return write_whole_course(tmp_path / "course")


@pytest.fixture
def files(course):
    return release_files(course, ["phase1"])


def sources(files, path):
    return ["".join(cell["source"]) for cell in json.loads(files[path])["cells"]]


def test_a_release_has_exactly_these_files(files):
    others = {path for path in files if not path.startswith("wheels/")}

    assert others == {
        ".github/workflows/check.yml",
        ".gitlab-ci.yml",
        ".gitignore",
        "AGENTS.md",
        "README.md",
        "constraints.txt",
        "course.toml",
        "docs/slow.svg",
        "docs/speed.md",
        "notebooks/01_doubling.ipynb",
        "notebooks/colours.py",
        "notebooks/drawing.py",
        "notebooks/exercises/phase1.ipynb",
        "notebooks/requirements.txt",
        "phase1/GUIDELINES.md",
        "phase1/codes.toml",
        "phase1/exercises.toml",
        "phase1/pictures/two.svg",
        "phase1/template_trainer.py",
        "requirements.txt",
        "tests/support/__init__.py",
        "tests/support/numbers.py",
        "tests/support/rules/__init__.py",
        "tests/support/rules/doubling.py",
        "tests/visible/phase1/test_doubling.py",
    }


def test_no_file_contains_the_solution(files):
    assert [path for path, content in files.items() if b"secret" in content] == []


def test_the_template_comes_from_the_solution_even_if_the_staff_filled_it_in(course, files):
    (course.root / "phase1/template_trainer.py").write_text("secret = 2\n")

    again = release_files(course, ["phase1"])

    assert again == files
    assert b'NotImplementedError("phase1/double")' in again["phase1/template_trainer.py"]


def test_a_course_without_a_solution_keeps_its_template(course):
    (course.root / "solutions/phase1/template_trainer.py").unlink()
    (course.root / "phase1/template_trainer.py").write_text("def double(number): ...\n")

    files = release_files(course, ["phase1"])

    assert files["phase1/template_trainer.py"] == b"def double(number): ...\n"


def test_a_template_with_a_marked_solution_is_refused(course):
    solution = course.root / "solutions/phase1/template_trainer.py"
    solution.rename(course.root / "phase1/template_trainer.py")

    with pytest.raises(CourseError, match="contains a marked solution"):
        release_files(course, ["phase1"])


def test_a_missing_template_is_named(course):
    (course.root / "solutions/phase1/template_trainer.py").unlink()

    with pytest.raises(CourseError, match=r"neither .*solutions.* nor .*template_trainer\.py"):
        release_files(course, ["phase1"])


def test_notebooks_install_gradsync_from_the_release(files):
    [install, *_] = sources(files, "notebooks/01_doubling.ipynb")

    assert install == "%pip install --requirement requirements.txt\nimport drawing"
    assert b"../wheels/gradsync-" in files["notebooks/requirements.txt"]


def test_a_notebook_with_exercises_has_stubs_and_no_hidden_tests(files):
    [exercise, test] = sources(files, "notebooks/exercises/phase1.ipynb")

    assert exercise.endswith('raise NotImplementedError("phase1/double")')
    assert test == "shown = 1"


def test_a_notebook_on_another_phase_is_left_out(course):
    entry = (course.root / "phase1/exercises.toml").read_text().replace("double", "halve")
    (course.root / "phase2").mkdir()
    (course.root / "phase2/exercises.toml").write_text(entry)
    late = notebook(("code", "check('phase2/halve', halve)", {}))
    (course.root / "notebooks/02_halving.ipynb").write_text(late)

    assert "notebooks/02_halving.ipynb" not in release_files(course, ["phase1"])


def test_a_page_of_the_staff_is_left_out_unless_a_released_page_links_to_it(course, files):
    page = course.root / "docs/speed.md"
    page.write_text(page.read_text() + "[Teaching](teaching.md)\n")

    assert "docs/teaching.md" not in files
    assert "docs/teaching.md" in release_files(course, ["phase1"])


def test_a_link_to_a_phase_that_is_not_released_is_plain_text(files):
    guide = files["phase1/GUIDELINES.md"].decode()
    notebook_text = sources(files, "notebooks/01_doubling.ipynb")[-1]

    assert " next [lesson](../notebooks/01_doubling.ipynb)\n" in guide
    assert "[far](https://example.org) [Speed](../docs/speed.md)" in guide
    assert notebook_text == "[Doubling](../phase1/GUIDELINES.md) halves"


@pytest.mark.parametrize(("phase", "released"), [("phase1", True), ("phase2", False)])
def test_a_notebook_without_exercises_belongs_to_the_guide_that_it_refers_to(
    course, phase, released
):
    text = f"[Costs](../{phase}/GUIDELINES.md#costs)"
    (course.root / "notebooks/03_costs.ipynb").write_text(notebook(("markdown", text, {})))

    assert ("notebooks/03_costs.ipynb" in release_files(course, ["phase1"])) is released


def test_the_readme_names_the_course_its_files_and_its_programs(files):
    readme = files["README.md"].decode()

    assert readme.startswith('# Doubling, for "beginners"\n')
    assert "| Phase 1 | [phase1/GUIDELINES.md](phase1/GUIDELINES.md) |" in readme
    assert "\npython phase1/template_trainer.py\n" in readme
    assert "gradsync trace" not in readme  # this course has nothing to trace


def test_ai_tutors_are_asked_not_to_solve(files):
    agents = files["AGENTS.md"].decode()

    assert "- `phase1/template_trainer.py`" in agents
    assert "Do not write, complete or correct code in these files" in agents


def test_the_requirements_pin_the_versions_of_the_course(files):
    [constraint, package] = files["requirements.txt"].decode().splitlines()

    assert constraint == "--constraint constraints.txt"
    assert package.removeprefix("./").removesuffix("[course]") in files


def test_a_damaged_notebook_is_named(course):
    (course.root / "notebooks/01_doubling.ipynb").write_text("{}")

    with pytest.raises(CourseError, match=r"01_doubling\.ipynb can't be read as a notebook"):
        release_files(course, ["phase1"])
