"""The commands: their output, files and exit status."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOLUTIONS = ROOT / "solutions"
TRAINER = "phase1/template_trainer.py"

UNSAFE = "--unsafe-no-sandbox"


def gradsync(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, check=False, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def graded_class(tmp_path_factory, needs_sandbox):
    """Grade a class of four: one right, one wrong, one without a file, one broken archive."""
    folder = tmp_path_factory.mktemp("class")
    shutil.copytree(SOLUTIONS, folder / "ada")
    shutil.copytree(SOLUTIONS, folder / "bob")
    source = (folder / "bob" / TRAINER).read_text()
    (folder / "bob" / TRAINER).write_text(source.replace("param.grad /= dist.get_world_size()", ""))
    shutil.copytree(SOLUTIONS, folder / "cleo")
    (folder / "cleo" / TRAINER).unlink()
    (folder / "dan.zip").write_bytes(b"not a zip")
    out = tmp_path_factory.mktemp("out")
    done = gradsync("grade", folder, "--phase", 1, "--out", out, "--seed", 5)
    return done, out


def report_of(out, name):
    return json.loads((out / name / "report.json").read_text())


@pytest.mark.slow
def test_a_class_is_graded_even_with_unreadable_submissions(graded_class):
    done, out = graded_class

    assert done.returncode == 0, done.stderr
    rows = {
        row["submission"]: row
        for row in csv.DictReader((out / "gradebook.csv").read_text("utf-8-sig").splitlines())
    }
    assert list(rows) == ["ada", "bob", "cleo", "dan"]
    assert {row["max_score"] for row in rows.values()} == {"100.0"}
    assert [rows[name]["score"] for name in ("ada", "dan")] == ["100.0", "0.0"]
    assert rows["dan"]["status"] == "unreadable"


@pytest.mark.slow
def test_a_report_has_the_keys_of_the_contract(graded_class):
    _, out = graded_class
    report = report_of(out, "bob")

    assert report["submission"] == "bob"
    assert report["score"] == pytest.approx(sum(test["points"] for test in report["tests"]))
    assert report["max_score"] == pytest.approx(100)
    keys = {"id", "exercise", "points", "max_points", "status", "message", "diagnosis"}
    assert all(keys <= set(test) for test in report["tests"])


@pytest.mark.slow
def test_the_mistake_is_named_with_ranks_and_line(graded_class):
    _, out = graded_class
    [first, *_] = [t for t in report_of(out, "bob")["tests"] if t["diagnosis"]]

    assert first["exercise"] == "phase1/average_gradients"
    assert first["status"] == "failed"
    assert first["diagnosis"]["code"] == "sum-not-mean"
    assert first["diagnosis"]["ranks"] == [0, 1, 2, 3]
    assert "template_trainer.py:" in first["message"]
    assert first["diagnosis"]["guide"] == "Gradient aggregation"


@pytest.mark.slow
def test_a_missing_file_loses_its_own_points_only(graded_class):
    _, out = graded_class
    tests = report_of(out, "cleo")["tests"]

    lost = {test["exercise"] for test in tests if test["status"] == "missing"}
    kept = {test["exercise"] for test in tests if test["status"] == "passed"}
    assert kept == {"phase1/PaddedDistributedSampler", "phase1/create_dataloaders"}
    assert len(lost) == 11


@pytest.mark.slow
def test_every_submission_has_a_page(graded_class):
    _, out = graded_class

    assert all((out / name / "report.html").stat().st_size > 5000 for name in ("ada", "bob", "dan"))


@pytest.mark.slow
def test_a_trainer_without_its_loader_file_is_graded(tmp_path):
    (tmp_path / "eve").mkdir()
    shutil.copy(SOLUTIONS / TRAINER, tmp_path / "eve")
    done = gradsync("grade", tmp_path / "eve", "--phase", 1, "--out", tmp_path / "out", UNSAFE)

    tests = report_of(tmp_path / "out", "eve")["tests"]
    assert done.returncode == 0
    assert {t["exercise"] for t in tests if t["status"] != "passed"} == {
        "phase1/PaddedDistributedSampler",
        "phase1/create_dataloaders",
    }


@pytest.mark.slow
def test_a_report_says_whether_it_ran_in_a_sandbox(graded_class):
    _, out = graded_class

    assert all(origin["sandboxed"] for origin in report_of(out, "ada")["made_from"])
    assert "in a sandbox" in (out / "ada" / "report.html").read_text()


def test_without_bubblewrap_grading_needs_an_option(tmp_path, monkeypatch):
    shutil.copytree(SOLUTIONS, tmp_path / "eve")
    monkeypatch.setenv("PATH", str(tmp_path))
    done = gradsync("grade", tmp_path / "eve", "--out", tmp_path / "out")

    assert done.returncode == 3
    assert "apt install bubblewrap" in done.stderr
    assert "--unsafe-no-sandbox" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_doctor_reports_what_works(needs_sandbox):
    done = gradsync("doctor")

    assert done.returncode == 0, done.stdout
    assert "bubblewrap works" in done.stdout


def test_the_doctor_reports_what_does_not_work(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = gradsync("doctor")

    assert done.returncode == 1
    assert "apt install bubblewrap" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_the_doctor_reports_a_missing_mnist_and_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADSYNC_DATA", str(tmp_path))
    done = gradsync("doctor")

    assert done.returncode == 1
    assert "There is no MNIST in GRADSYNC_DATA" in " ".join(done.stdout.split())
    assert "GPUs" in done.stdout


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("def broken(:\n", "error"),
        pytest.param("import nothing_like_that\n", "error", marks=pytest.mark.slow),
        pytest.param("1 / 0\n", "error", marks=pytest.mark.slow),
        pytest.param("\0", "missing", marks=pytest.mark.slow),  # refused: not Python
    ],
)
def test_a_file_that_does_not_import_is_graded(tmp_path, source, status):
    shutil.copytree(SOLUTIONS, tmp_path / "eve")
    (tmp_path / "eve" / TRAINER).write_text(source)
    done = gradsync("grade", tmp_path / "eve", "--phase", 1, "--out", tmp_path / "out", UNSAFE)

    tests = report_of(tmp_path / "out", "eve")["tests"]
    assert done.returncode == 0
    assert {t["status"] for t in tests if "loader" not in t["id"]} == {status}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grade", "nothing-there"], "nothing-there does not exist"),
        (["grade", "nothing-there.zip"], "nothing-there.zip does not exist"),
        (["grade", "README.md"], "README.md is not a folder, .zip or .tar.gz"),
        (["grade", "solutions", "--phase", "9"], "Choose --phase 1, 2 or 3."),
        (["grade", "solutions", "--out", "README.md"], "is a file"),
        (["grade"], "SUBMISSIONS"),
        (["hint", "averge_gradients"], "average_gradients"),
        (["hint"], "Name an exercise, as in `gradsync hint NAME`. In phase1: Padded"),
        (["check", "averge_gradients"], "average_gradients"),
        (["explain", "sum-not-men"], "Did you mean sum-not-mean"),
        (["nonsense"], "nonsense"),
    ],
)
def test_unusable_arguments_get_one_clear_line_and_status_2(arguments, said):
    done = gradsync(*arguments)

    assert done.returncode == 2
    assert said.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_outside_a_course_the_packages_course_is_used(tmp_path):
    assert gradsync("hint", "train", cwd=tmp_path).returncode == 0


def test_the_first_hint_is_the_smallest(tmp_path):
    first = gradsync("hint", "average_gradients").stdout
    second = gradsync("hint", "average_gradients", "-n", 2).stdout

    assert "all-reduce" in first
    assert len(second) > len(first)
    assert "GUIDELINES.md" in first


def test_check_shows_the_progress_and_the_next_step(tmp_path):
    for part in ("phase1", "tests/visible", "tests/support"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(SOLUTIONS / "phase1/template_data_loader.py", tmp_path / "phase1")
    done = gradsync("check", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "2 of 13 exercises pass the visible tests" in done.stdout
    words = " ".join(done.stdout.split())
    assert "Next: write read_rank_info in phase1/template_trainer.py" in words
    assert "lesson notebooks/03_launching_ranks.ipynb" in words
    assert "read phase1/GUIDELINES.md, “Launching ranks”" in words


def test_check_of_one_exercise_shows_all_details(tmp_path):
    for part in ("phase1", "tests/visible", "tests/support"):
        shutil.copytree(ROOT / part, tmp_path / part)
    done = gradsync("check", "average_gradients", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "average_gradients" in done.stdout
    assert "broadcast_model" not in done.stdout


@pytest.mark.slow
def test_the_demo_grades_a_right_an_untouched_and_a_wrong_submission(tmp_path):
    done = gradsync("demo", "--out", tmp_path)

    assert done.returncode == 0, done.stderr
    scores = {row["submission"]: float(row["score"]) for row in _gradebook(tmp_path)}
    assert scores["reference"] == 100
    assert scores["untouched-template"] == 0
    assert 80 < scores["skips-missing-gradients"] < 100
    [mistake] = [
        t for t in report_of(tmp_path, "skips-missing-gradients")["tests"] if t["diagnosis"]
    ]
    assert mistake["diagnosis"]["code"] == "none-gradient-skipped"
    assert mistake["status"] == "deadlock"


@pytest.mark.parametrize("phase", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_a_trace_shows_every_rank_of_a_trainer(tmp_path, phase):
    done = gradsync("trace", SOLUTIONS, "--phase", phase, "--out", tmp_path / "seen")

    assert done.returncode == 0, done.stderr
    assert "A step takes " in done.stdout
    rows = json.loads((tmp_path / "seen.json").read_text())["traceEvents"]
    assert {row["pid"] for row in rows} == {0, 1}
    assert {"compute", "waits"} < {row["name"] for row in rows}
    assert (tmp_path / "seen.svg").read_text().startswith("<svg")


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "kept"), [(2, 8), (3, 3)])
def test_the_trace_of_a_pipeline_shows_its_schedule_and_bubble(tmp_path, phase, kept):
    options = ("--pipeline", "--ranks", 3, "--out", tmp_path / "seen")
    done = gradsync("trace", SOLUTIONS, "--phase", phase, *options)

    assert done.returncode == 0, done.stderr
    assert "With 8 microbatches on 3 ranks, it is at least 20%" in done.stdout
    assert f"Rank 0 keeps the activations of up to {kept} microbatches." in done.stdout
    assert (tmp_path / "seen.svg").read_text().count("backward of microbatch") == 3 * 8


def test_a_phase_without_a_pipeline_is_refused(tmp_path):
    done = gradsync("trace", SOLUTIONS, "--pipeline", "--out", tmp_path / "seen")

    assert done.returncode == 2
    assert "phase1 has no pipeline. Name another one with --phase." in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_trace_of_a_failing_trainer_says_why(tmp_path):
    shutil.copytree(SOLUTIONS, tmp_path / "bob")
    source = (tmp_path / "bob" / TRAINER).read_text()
    broken = source.replace("        param.grad /= dist.get_world_size()", "        1 / 0")
    (tmp_path / "bob" / TRAINER).write_text(broken)
    done = gradsync("trace", tmp_path / "bob", "--out", tmp_path / "seen")

    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError" in done.stdout
    assert (tmp_path / "seen.svg").stat().st_size > 1000


@pytest.mark.slow
def test_a_trace_without_a_trainer_is_refused(tmp_path):
    (tmp_path / "phase1").mkdir()
    (tmp_path / "phase1" / "template_data_loader.py").write_text("")
    done = gradsync("trace", tmp_path)

    assert done.returncode == 2
    assert f"{tmp_path}: phase1/template_trainer.py is not in the submission" in done.stderr


@pytest.mark.parametrize("phase", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_trainer_that_is_not_written_yet_has_no_trace(tmp_path, phase):
    done = gradsync("trace", ROOT, "--phase", phase, "--out", tmp_path / "seen")

    assert done.returncode == 2
    assert f"gradsync: phase{phase}/train is not written yet." in done.stderr
    assert "`gradsync check` shows what to write next" in done.stderr
    assert list(tmp_path.iterdir()) == []


def _gradebook(out):
    return list(csv.DictReader((out / "gradebook.csv").read_text("utf-8-sig").splitlines()))
