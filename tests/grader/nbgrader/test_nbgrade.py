"""Problems in `gradsync nbgrade`, and in nbgrader with the settings of the course."""

import shutil

import pytest
from class_folder import PROGRAMS, ClassFolder, environment
from learners import COURSE, ROOT, read
from report_samples import report, verdict

from gradsync.errors import GraderError
from gradsync.nbgrader.autograde import phases_of
from gradsync.nbgrader.marking import by_exercise, scaled


@pytest.fixture
def course_copy(released, tmp_path):
    """A copy of the released course."""
    for name in ("source", "release", "gradebook.db", "nbgrader_config.py"):
        place = tmp_path / "class" / name
        place.parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (released.root / name).is_dir() else shutil.copy
        copy(released.root / name, place)
    return ClassFolder(tmp_path / "class")


def untouched(folder):
    return read(folder.root / "release" / "phase1" / "phase1.ipynb")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["source", "phase1"], "has no nbgrader_config.py"),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in (
                (["nothing-there", "phase1"], "nothing-there is not a folder"),
                (
                    [".", "phase7"],
                    "no assignment 'phase7'; it has phase1, phase2, phase3. Run `nbgrader",
                ),
                ([".", "phase1"], "has no submissions for phase1. Put them into"),
                ([".", "phase1", "--jobs", "0"], "greater than or equal to 1"),
            )
        ),
    ],
)
def test_unusable_arguments_get_a_message_and_status_2(course_copy, arguments, message):
    done = course_copy.run("gradsync", "nbgrade", *arguments)

    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_course_without_a_gradebook_is_refused_and_no_gradebook_is_created(course_copy):
    (course_copy.root / "gradebook.db").unlink()
    done = course_copy.run("gradsync", "nbgrade", ".", "phase1")

    assert done.returncode == 2
    assert "Run `nbgrader generate_assignment phase1`" in done.stderr
    assert not (course_copy.root / "gradebook.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    ["", "c.Autograde.autograde_preprocessors.insert(0, 'nbgrader.preprocessors.Execute')"],
    ids=["nbgrader's own", "Execute added"],
)
def test_settings_that_would_run_learners_cells_are_refused(course_copy, setting):
    config = course_copy.root / "nbgrader_config.py"
    before = config.read_text() if setting else "c = get_config()"
    config.write_text(f"{before}\n{setting}\n")
    course_copy.submit("dan", "phase1", untouched(course_copy))
    done = course_copy.run("gradsync", "nbgrade", ".", "phase1")

    assert done.returncode == 2
    assert "would run the cells of submissions" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_a_submission_that_is_not_a_notebook_does_not_affect_other_learners(
    course_copy, needs_sandbox
):
    course_copy.submit("bob", "phase1", "{broken")
    course_copy.submit("d'an & co", "phase1", untouched(course_copy))
    (course_copy.root / "submitted" / "eve" / "phase1").mkdir(parents=True)
    done = course_copy.run("gradsync", "nbgrade", ".", "phase1")

    assert done.returncode == 3
    assert "d'an & co: 0 of 100 points" in done.stdout
    assert "bob could not be graded: phase1.ipynb can't be read as a notebook" in done.stderr
    assert "eve could not be graded: phase1.ipynb is not in phase1: it has no" in done.stderr
    assert "Traceback" not in done.stderr
    assert set(course_copy.points("phase1")["d'an & co"].values()) == {0.0}


@pytest.mark.slow
def test_a_notebook_of_another_name_gets_no_score_instead_of_0(course_copy, needs_sandbox):
    course_copy.submit("ann", "phase1", untouched(course_copy))
    course_copy.submit("bob", "phase1", untouched(course_copy))
    folder = course_copy.root / "submitted/ann/phase1"
    (folder / "phase1.ipynb").rename(folder / "phase1 (1).ipynb")
    done = course_copy.run("gradsync", "nbgrade", ".", "phase1")
    alone = course_copy.run("gradsync", "nbgrade", ".", "phase1", "--student", "bob")
    unknown = course_copy.run("gradsync", "nbgrade", ".", "phase1", "--student", "eve")

    assert done.returncode == 3
    assert "phase1.ipynb is not in phase1: it has phase1 (1).ipynb. Rename" in done.stderr
    assert "ann" not in course_copy.points("phase1")
    assert "bob" in course_copy.points("phase1")
    assert (alone.returncode, "0 graded, 1 unchanged" in alone.stdout) == (0, True)
    assert "There is no submission of eve for phase1." in unknown.stderr


@pytest.mark.slow
def test_a_changed_submission_is_graded_again_and_fresh_grades_all_again(
    course_copy, needs_sandbox
):
    course_copy.submit("dan", "phase1", untouched(course_copy))
    course_copy.run("gradsync", "nbgrade", ".", "phase1")
    course_copy.submit("dan", "phase1", "{broken")
    changed = course_copy.run("gradsync", "nbgrade", ".", "phase1")
    course_copy.submit("dan", "phase1", untouched(course_copy))
    back = course_copy.run("gradsync", "nbgrade", ".", "phase1")
    fresh = course_copy.run("gradsync", "nbgrade", ".", "phase1", "--fresh")

    assert "0 graded, 0 unchanged" in changed.stdout
    assert "0 graded, 1 unchanged" in back.stdout
    assert "1 graded, 0 unchanged" in fresh.stdout


@pytest.mark.slow
def test_without_a_sandbox_learners_get_no_score_unless_the_settings_allow_it(course_copy):
    course_copy.submit("zoe", "phase1", untouched(course_copy))
    poor = {**environment(), "PATH": str(PROGRAMS)}
    theirs = course_copy.run("nbgrader", "autograde", "phase1", env=poor)
    ours = course_copy.run("gradsync", "nbgrade", ".", "phase1", env=poor)

    assert theirs.returncode == 1
    assert "zoe: phase1 is not graded" in theirs.stderr
    assert "Or set `c.GradeSubmission.sandboxed = False`" in theirs.stderr
    assert ours.returncode == 3
    assert "`c.GradeSubmission.sandboxed = False` in nbgrader_config.py" in ours.stderr
    assert set(course_copy.points("phase1")["zoe"].values()) == {None}
    assert not (course_copy.root / "autograded" / "zoe" / "phase1").exists()

    with (course_copy.root / "nbgrader_config.py").open("a") as config:
        config.write("\nc.GradeSubmission.sandboxed = False\n")
    allowed = course_copy.run("gradsync", "nbgrade", ".", "phase1", env=poor)

    assert allowed.returncode == 0, allowed.stderr
    assert set(course_copy.points("phase1")["zoe"].values()) == {0.0}


@pytest.mark.slow
def test_without_hidden_tests_the_visible_tests_give_the_points(released, needs_sandbox, tmp_path):
    for part in ("phase1", "solutions", "tests/visible", "tests/support"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copytree(released.root / "source", tmp_path / "class" / "source")
    shutil.copy(released.root / "nbgrader_config.py", tmp_path / "class")
    folder = ClassFolder(tmp_path / "class")
    folder.release("phase1")
    folder.submit("ada", "phase1", read(folder.root / "source" / "phase1" / "phase1.ipynb"))
    done = folder.run("nbgrader", "autograde", "phase1")

    assert done.returncode == 0, done.stderr
    assert sum(folder.points("phase1")["ada"].values()) == pytest.approx(100)
    assert len(folder.points("phase1")["ada"]) == len(COURSE.exercises("phase1"))


def test_a_grading_cell_of_another_kind_is_refused_and_gives_no_points():
    with pytest.raises(
        GraderError, match=r"does not call gradsync\.notebook\.grade: 'assert True'"
    ):
        phases_of(['gradsync.notebook.grade("phase1/train", train)', "assert True"])


@pytest.mark.parametrize(
    ("points", "most", "worth", "expected"), [(2, 3, 12, 8), (0, 0, 5, 0), (1 / 3, 1, 1, 1 / 3)]
)
def test_points_are_scaled_to_the_maximum_of_a_cell(points, most, worth, expected):
    graded = report(verdict(points=points, max_points=most))

    assert scaled(graded, worth) == pytest.approx(expected)


def test_points_never_exceed_the_maximum_of_a_cell():
    most = 0.1 + 0.2

    assert scaled(report(verdict(points=most, max_points=most)), 0.3) <= 0.3


def test_the_report_on_an_exercise_has_its_tests_alone():
    whole = report(verdict("a", seconds=1.0), verdict("b"), verdict("a", seconds=2.0))

    alone = by_exercise(whole)["phase1/a"]
    assert [test.exercise for test in alone.verdicts] == ["phase1/a", "phase1/a"]
    assert alone.seconds == 3.0
