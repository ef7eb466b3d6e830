"""A class of five goes through nbgrader, from `generate_assignment` to `export`."""

import csv
import html
import json
import shutil

import pytest
from class_folder import ClassFolder
from learners import COURSE, FORGED, SCRIPT, Learner, cell_named, read

from gradsync.nbgrader.marking import store_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("one class, in one process")]

FIVE = ["ada", "bob", "cleo", "dan", "eve"]
TRAINER = "phase1/template_trainer.py"


def kept_seed(folder, assignment):
    return store_of(folder.root, assignment).seed


def graded_as_files(folder, learners, phase, out):
    """Return the points that `gradsync grade` gives for the same code, by learner and exercise."""
    for name, learner in learners.items():
        for path, text in learner.files(phase).items():
            (out / "class" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (out / "class" / name / path).write_text(text)
    shutil.copytree(COURSE.root / phase, out / "class" / "dan" / phase)
    seed = kept_seed(folder, phase)
    done = folder.run(
        *("gradsync", "grade", out / "class", "--phase", phase[-1]),
        *("--out", out / "grades", "--seed", seed),
    )
    assert done.returncode == 0, done.stderr
    points = {}
    for name in [*learners, "dan"]:
        points[name] = {exercise.name: 0.0 for exercise in COURSE.exercises(phase)}
        for test in json.loads((out / "grades" / name / "report.json").read_text())["tests"]:
            points[name][test["exercise"].partition("/")[2]] += test["points"]
    return points


def about_the_same(points):
    """Allow for rounding: report.json has two decimals, so three thirds of 10 add up to 9.99."""
    return {name: pytest.approx(exercises, abs=0.02) for name, exercises in points.items()}


@pytest.fixture(scope="session")
def fed_back(graded):
    folder, _ = graded
    done = folder.run("nbgrader", "generate_feedback", "phase1")
    assert done.returncode == 0, done.stderr
    return {
        name: (folder.root / "feedback" / name / "phase1" / "phase1.html").read_text()
        for name in FIVE
    }


def outputs_of(folder, name, exercise):
    notebook = read(folder.root / "autograded" / name / "phase1" / "phase1.ipynb")
    return cell_named(notebook, f"grade-{exercise}").outputs


def test_a_killed_run_leaves_no_process(killed_midway):
    assert killed_midway == []


def test_the_run_after_a_kill_finishes_the_class(graded):
    folder, done = graded

    assert done.returncode == 0, done.stderr
    assert sorted(folder.points("phase1")) == FIVE
    assert "ada: 100 of 100 points" in done.stdout


def test_each_exercise_has_the_points_of_gradsync_grade(graded, learners, tmp_path):
    folder, _ = graded
    wanted = graded_as_files(folder, learners, "phase1", tmp_path)

    assert folder.points("phase1") == about_the_same(wanted)
    assert wanted["bob"]["average_gradients"] < 13
    assert wanted["eve"]["broadcast_model"] < 10


def test_partial_credit_is_given(graded):
    folder, _ = graded
    [cleo] = [
        points["average_gradients"] for n, points in folder.points("phase1").items() if n == "cleo"
    ]

    assert 0 < cleo < 13


def test_nbgraders_own_autograde_gives_the_same_gradebook(graded, tmp_path):
    folder, _ = graded
    wanted = folder.points("phase1")
    shutil.copytree(
        folder.root, tmp_path / "copy", ignore=shutil.ignore_patterns("gradebook.db", "autograded")
    )
    copied = ClassFolder(tmp_path / "copy")
    copied.run("nbgrader", "generate_assignment", "phase1", "--force")
    done = copied.run("nbgrader", "autograde", "phase1")

    assert done.returncode == 0, done.stderr
    assert copied.points("phase1") == wanted


def test_a_second_run_grades_nothing_again(graded):
    folder, _ = graded
    before = (folder.root / "autograded" / "ada" / "phase1" / "phase1.ipynb").stat().st_mtime_ns
    done = folder.run("gradsync", "nbgrade", ".", "phase1")

    assert done.returncode == 0, done.stderr
    assert "0 graded, 5 unchanged" in done.stdout
    path = folder.root / "autograded" / "ada" / "phase1" / "phase1.ipynb"
    assert path.stat().st_mtime_ns == before


def test_grading_cells_show_verdicts_and_then_the_points(graded):
    folder, _ = graded
    shown, points = outputs_of(folder, "bob", "average_gradients")

    assert "average_gradients" in shown.data["text/html"]
    assert "sum-not-mean" in shown.data["text/html"]
    assert "cell average_gradients, line" in shown.data["text/html"]
    assert points.output_type == "execute_result"
    assert float(points.data["text/plain"]) < 13


def test_a_deadlock_is_explained_with_its_timeline(graded):
    folder, _ = graded
    shown, _ = outputs_of(folder, "cleo", "average_gradients")

    assert "deadlock" in shown.data["text/html"].lower()
    assert "<svg" in shown.data["text/html"]


def test_outputs_name_the_seed(graded):
    folder, _ = graded

    assert (
        f"--seed {kept_seed(folder, 'phase1')}"
        in outputs_of(folder, "bob", "train")[0].data["text/html"]
    )


def test_a_hostile_notebook_can_not_read_or_write_the_course(graded):
    folder, _ = graded
    text = (folder.root / "autograded" / "eve" / "phase1" / "phase1.ipynb").read_text()

    assert folder.points("phase1")["eve"]["average_gradients"] == 13
    assert "ESCAPED to [" not in text
    assert (folder.root / "gradebook.db").read_bytes().startswith(b"SQLite")


def test_a_learners_outputs_are_removed(graded):
    folder, _ = graded
    notebook = read(folder.root / "autograded" / "eve" / "phase1" / "phase1.ipynb")
    solved = [cell for cell in notebook.cells if cell.cell_type == "code"]
    forged = [c for c in solved for o in c.outputs if o.get("data", {}).get("text/html") == SCRIPT]

    assert forged == []
    assert outputs_of(folder, "eve", "broadcast_model")[1].data["text/plain"] != FORGED
    assert all(
        not cell.outputs for cell in solved if not cell.metadata.get("nbgrader", {}).get("grade")
    )


def test_a_grading_cells_text_is_restored(graded):
    folder, done = graded
    notebook = read(folder.root / "autograded" / "eve" / "phase1" / "phase1.ipynb")

    assert cell_named(notebook, "grade-broadcast_model").source == (
        'gradsync.notebook.grade("phase1/broadcast_model", broadcast_model)'
    )
    assert "eve: cell grade-broadcast_model was changed; it is restored" in " ".join(
        done.stdout.split()
    )


def test_feedback_has_the_verdicts_and_no_code_of_a_hidden_test(fed_back):
    lines = {
        line.strip()
        for path in COURSE.suite("hidden", "phase1").glob("*.py")
        for line in path.read_text().splitlines()
        if len(line.strip()) > 40 and not line.strip().startswith(('"""', "#", "from ", "import "))
    }
    shown = {line.strip() for line in html.unescape(fed_back["bob"]).splitlines()}

    assert "sum-not-mean" in fed_back["bob"]
    assert len(lines) > 100
    assert not any(
        line in page for page in [html.unescape(fed_back["bob"])] for line in lines & shown
    )
    assert "tests/hidden" not in fed_back["bob"]


def test_no_script_of_a_learner_gets_into_feedback(fed_back):
    assert SCRIPT not in fed_back["eve"]
    assert "javascript:alert" not in fed_back["eve"].replace("[x](javascript:alert(1))", "")
    assert html.escape(SCRIPT) in fed_back["eve"]


def test_export_has_the_score_of_every_learner(graded):
    folder, _ = graded
    done = folder.run("nbgrader", "export", "--to", "grades.csv")
    rows = list(csv.DictReader((folder.root / "grades.csv").read_text().splitlines()))
    scores = {
        row["student_id"]: float(row["score"]) for row in rows if row["assignment"] == "phase1"
    }

    assert done.returncode == 0, done.stderr
    assert scores["ada"] == 100
    assert scores["dan"] == 0
    assert scores == {
        name: pytest.approx(sum(points.values()))
        for name, points in folder.points("phase1").items()
    }


def test_phase_2_has_the_points_of_gradsync_grade(released, needs_sandbox, tmp_path):
    source = read(released.root / "source" / "phase2" / "phase2.ipynb")
    released.submit("ada", "phase2", source)
    released.submit("dan", "phase2", read(released.root / "release" / "phase2" / "phase2.ipynb"))
    done = released.run("nbgrader", "autograde", "phase2")
    wanted = graded_as_files(released, {"ada": Learner()}, "phase2", tmp_path)

    assert done.returncode == 0, done.stderr
    assert released.points("phase2") == about_the_same(wanted)
    assert sum(released.points("phase2")["ada"].values()) == 100
    assert sum(wanted["dan"].values()) == 0
