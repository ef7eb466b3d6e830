"""Gradescope's and PrairieLearn's containers grade a submission with the files of an export."""

import io
import json
import os
import subprocess
import sys
import zipfile

import pytest
from containers import in_container
from platforms import gradescope, prairielearn
from small_course import RIGHT, WRONG, write_course, write_submission

from gradsync.course.release.zips import zipped
from gradsync.exporting.containers import GRADESCOPE, PRAIRIELEARN, grading_files

PROGRAM = """#!/bin/sh
PYTHONPATH={site} exec {python} "$@"
"""
BROKEN = "import os\nos._exit(1)\n"


@pytest.fixture
def course(tmp_path):
    made = write_course(tmp_path / "course")
    write_course(made.root, phase="phase2")
    (made.root / "course.toml").write_text('[course]\ntitle = "Doubling"\n')
    (made.root / "solutions").mkdir()
    (made.root / "solutions/secret.py").write_text(RIGHT)
    return made


def gradescope_zip(course, phases, seed):
    return zipped(grading_files(course, phases, GRADESCOPE, seed))


def install(files, site, python, seen_at):
    """Unpack the wheel, and write a program that runs Python with it, as pip would install it."""
    [wheel] = files.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(PROGRAM.format(site=seen_at, python=sys.executable))
    python.chmod(0o755)


@pytest.fixture
def autograder(course, tmp_path):
    """The folder /autograder of Gradescope, with a submission of phase 1."""
    root = tmp_path / "autograder"
    archive = zipfile.ZipFile(io.BytesIO(gradescope_zip(course, ["phase1"], 7)))
    archive.extractall(root / "source")
    install(root / "source", root / "site", root / "venv/bin/python", "/autograder/site")
    (root / "run_autograder").write_bytes((root / "source/run_autograder").read_bytes())
    (root / "run_autograder").chmod(0o755)
    (root / "results").mkdir()
    return root


# A program as process 1 of a pid namespace. The ids that the sandbox's own processes get have been
# used before by others.
BURN = ("bash", "-c", 'for i in {1..20}; do /bin/true; done; exec "$@"', "--")
FIRST = ("--pid", "--fork", "--mount-proc", "--kill-child", *BURN)


@pytest.fixture(params=["root", "user"])
def as_process_1(request):
    """The start of a command that runs a script as process 1 of a container."""
    as_root = request.param == "root"
    if as_root and os.geteuid() != 0:
        pytest.skip("only root can be root in a container")
    own_ids = () if as_root else ("--user", "--map-current-user")
    return lambda mounts: [*in_container(mounts, as_root=as_root), "unshare", *own_ids, *FIRST]


def run_gradescope(autograder, source, *, namespaces=True):
    if source is not None:
        write_submission(autograder / "submission", source)
    return graded(autograder, [*in_container({"/autograder": autograder}, namespaces)])


def graded(autograder, start, script=("/autograder/run_autograder",)):
    done = subprocess.run(
        [*start, *script],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return gradescope((autograder / "results/results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("source", "score"), [(RIGHT, 100), (WRONG, 0)])
def test_gradescope_gets_the_points_from_a_sandbox(needs_sandbox, autograder, source, score):
    points, [test], output = run_gradescope(autograder, source)

    assert points == test["score"] == score
    assert test["max_score"] == 100
    assert "sandbox" not in output
    results = json.loads((autograder / "results/results.json").read_text())
    assert results["extra_data"] == {"seed": 7}


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        ("/autograder/run_autograder",),
        (
            *("env", "PYTHON=/autograder/venv/bin/python", "bash", "/autograder/source/grade.sh"),
            *("gradescope", "/autograder/submission", "/autograder/results/results.json"),
        ),
    ],
    ids=["run_autograder", "grade.sh"],
)
def test_the_first_process_of_a_container_can_grade(
    needs_sandbox, autograder, as_process_1, script
):
    write_submission(autograder / "submission", RIGHT)

    points, _, output = graded(autograder, as_process_1({"/autograder": autograder}), script)

    assert points == 100
    assert "sandbox" not in output


@pytest.mark.slow
def test_gradescope_gets_a_note_if_no_sandbox_is_possible(needs_sandbox, autograder):
    points, [test, staff], output = run_gradescope(autograder, WRONG, namespaces=False)

    assert points == 0
    assert "it is not twice as large" in test["output"]
    assert "sandbox" not in output
    assert staff["visibility"] == "hidden"
    assert staff["output"].startswith("Graded without a sandbox")


@pytest.mark.slow
def test_gradescope_gets_the_reason_why_a_submission_has_no_points(needs_sandbox, autograder):
    (autograder / "submission").mkdir()
    (autograder / "submission/notes.txt").write_text("sorry")

    points, _, output = run_gradescope(autograder, None)

    assert points == 0
    assert "none of the course's files" in output


@pytest.mark.slow
def test_prairielearn_gets_the_share_of_the_points(needs_sandbox, course, tmp_path, as_process_1):
    image, grade = tmp_path / "image", tmp_path / "grade"
    for path, content in grading_files(course, ["phase1"], PRAIRIELEARN, 7).items():
        (image / path).parent.mkdir(parents=True, exist_ok=True)
        (image / path).write_bytes(content)
    install(image, image / ".site", image / ".bin/python3", "/gradsync/.site")
    write_submission(grade / "student", RIGHT)
    command = as_process_1({"/gradsync": image, "/grade": grade})
    path = "PATH=/gradsync/.bin:/usr/bin:/bin"

    done = subprocess.run(
        [*command, "env", path, "/bin/bash", "/gradsync/entrypoint.sh"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "sandbox" not in done.stdout + done.stderr
    score, [test], _ = prairielearn((grade / "results/results.json").read_text())
    assert (score, test["message"]) == (1.0, "Passed.")


@pytest.mark.slow
def test_if_the_grader_fails_there_is_no_result(needs_sandbox, autograder):
    (autograder / "source/course/tests/hidden/phase1/test_trainer.py").write_text("import nothing")
    write_submission(autograder / "submission", RIGHT)

    done = subprocess.run(
        [*in_container({"/autograder": autograder}), "/autograder/run_autograder"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 3
    assert not (autograder / "results/results.json").exists()


def test_the_files_grade_the_chosen_phases_and_contain_no_solution(course):
    names = zipfile.ZipFile(io.BytesIO(gradescope_zip(course, ["phase2"], None))).namelist()

    assert {"setup.sh", "run_autograder", "requirements.txt"} <= set(names)
    assert "course/tests/hidden/phase2/test_trainer.py" in names
    assert "course/tests/hidden/phase1/test_trainer.py" not in names
    assert [name for name in names if "secret" in name] == []


def test_scripts_are_programs_and_valid_bash(course):
    archive = zipfile.ZipFile(io.BytesIO(gradescope_zip(course, ["phase1"], 7)))

    for name in ("setup.sh", "run_autograder", "grade.sh"):
        assert archive.getinfo(name).external_attr >> 16 & 0o111
        subprocess.run(["bash", "-n"], input=archive.read(name), check=True)


def test_the_archive_has_the_same_bytes_each_time(course):
    assert gradescope_zip(course, ["phase1"], 7) == gradescope_zip(course, ["phase1"], 7)
