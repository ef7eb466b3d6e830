"""`gradsync export`: from a folder of grades to the files of other systems."""

import csv
import json
import shutil
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from platforms import gradescope, prairielearn
from small_course import RIGHT, WRONG, write_course, write_submission

from gradsync.errors import UnusableInput
from gradsync.exporting.export import export
from gradsync.grading.store import GradeStore
from gradsync.records import Report

NAMES = ("=1+1, Ödön", 'Ann "Annie" O\'Neil')


def gradsync(course, *arguments):
    command = [sys.executable, "-m", "gradsync", *map(str, arguments)]
    return subprocess.run(command, cwd=course.root, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    made = write_course(tmp_path_factory.mktemp("doubling") / "course")
    (made.root / "course.toml").write_text('[course]\ntitle = "Doubling"\n')
    template = 'def double(number):\n    raise NotImplementedError("phase1/double")\n'
    (made.root / "phase1/template_trainer.py").write_text(template)
    return made


@pytest.fixture(scope="module")
def submissions(course):
    folder = course.root.parent / "class"
    for name, source in zip(NAMES, (RIGHT, WRONG), strict=True):
        write_submission(folder / name, source)
    return folder


@pytest.fixture(scope="module")
def grades(course, submissions):
    out = course.root.parent / "grades"
    done = gradsync(course, "grade", submissions, "--out", out, "--unsafe-no-sandbox")
    assert done.returncode == 0, done.stderr
    (out / "roster.csv").write_text(
        f'id,name,email\n"{NAMES[0]}","Őry, Ödön",oe@example.org\n7,Nobody,n@example.org\n'
    )
    return out


def exported(course, out, to, into=None):
    return export(out, course, to, into, {})


def test_canvas_gets_a_row_for_everybody(course, grades):
    found = exported(course, grades, "canvas")

    rows = list(csv.DictReader((grades / "exports/canvas.csv").read_text().splitlines()))
    assert found.paths == (grades / "exports/canvas.csv",)
    assert {row["SIS User ID"]: row["Doubling"] for row in rows if row["SIS User ID"]} == {
        "'=1+1, Ödön": "100",
        "7": "",
    }
    assert (found.missing, found.without_score) == (("Nobody (7)",), ())


def test_reports_that_nobody_would_get_are_refused(course, grades):
    with pytest.raises(UnusableInput, match="each needs a folder in a download of Moodle"):
        exported(course, grades, "moodle-feedback")
    done = gradsync(course, "export", grades, "--to", "mail")

    assert not (grades / "exports/moodle-feedback.zip").exists()
    assert "1 submission left out, without an address in the roster: Ann" in done.stdout


def test_a_downloaded_worksheet_is_filled_in_where_it_is(course, grades, tmp_path):
    sheet = tmp_path / "worksheet.csv"
    header = "Identifier,Full name,Grade,Last modified (grade),Feedback comments\n"
    sheet.write_text(f'\ufeff{header}Participant 12,"Őry, Ödön",,-,\n', encoding="utf-8")

    found = exported(course, grades, "moodle", sheet)

    [row] = csv.DictReader(sheet.read_text().splitlines())
    assert (row["Identifier"], row["Grade"]) == ("Participant 12", "100")
    assert found.not_in_file == (NAMES[1],)


def test_a_file_of_another_kind_is_not_overwritten(course, grades, tmp_path):
    (tmp_path / "thesis.csv").write_text("mine\n")

    done = gradsync(course, "export", grades, "--to", "canvas", "--into", tmp_path / "thesis.csv")

    assert done.returncode == 2
    assert (
        "thesis.csv can't be filled in. It is not a gradebook that Canvas exported" in done.stderr
    )
    assert (tmp_path / "thesis.csv").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("to", "read"), [("gradescope", gradescope), ("prairielearn", prairielearn)]
)
def test_a_platform_gets_a_file_for_each_submission(course, grades, to, read):
    exported(course, grades, to)

    texts = [path.read_text() for path in (grades / "exports" / to).glob("*.json")]
    scores = sorted(read(text)[0] for text in texts)
    assert scores in ([0, 100], [0, 1])
    assert not any("sandbox" in read(text)[2] for text in texts)


def test_gradescope_gets_an_autograder_before_anything_is_graded(course, tmp_path):
    (tmp_path / "grades").mkdir()

    found = exported(course, tmp_path / "grades", "gradescope", tmp_path / "autograder.zip")

    assert found.paths == (tmp_path / "autograder.zip",)


def test_junit_has_a_suite_for_each_submission(course, grades):
    exported(course, grades, "junit")

    root = ET.parse(grades / "exports/junit.xml").getroot()
    assert [suite.get("name") for suite in root if suite.get("tests") == "2"] == list(NAMES)


@pytest.mark.parametrize("to", ["actions", "classroom50"])
def test_github_gets_integers(course, grades, to):
    exported(course, grades, to)

    contents = [json.loads(p.read_text()) for p in (grades / "exports" / to).glob("*.json")]
    scores = [sum(test["score"] for test in content["tests"]) for content in contents]
    assert sorted(scores) == [0, 100]


def test_one_file_for_several_submissions_is_refused(course, grades, tmp_path):
    with pytest.raises(UnusableInput, match=r"there are 3 submissions\. Name a folder"):
        exported(course, grades, "actions", tmp_path / "one.json")


def test_similarity_takes_the_submissions(course, submissions, tmp_path):
    exported(course, submissions, "similarity", tmp_path / "compare")

    assert (tmp_path / "compare/submissions/base-code/phase1/template_trainer.py").is_file()
    assert len(list((tmp_path / "compare/submissions").iterdir())) == 3


def test_similarity_of_grades_is_refused_with_advice(course, grades):
    with pytest.raises(UnusableInput, match="name the folder of the submissions"):
        exported(course, grades, "similarity")


def test_similarity_is_not_mixed_with_an_earlier_one(course, submissions, tmp_path):
    exported(course, submissions, "similarity", tmp_path / "compare")

    with pytest.raises(UnusableInput, match="Name a new folder with --into"):
        exported(course, submissions, "similarity", tmp_path / "compare")


@pytest.mark.parametrize(
    ("folder", "reason"), [("nowhere", "is not a folder of grades"), (".", "has no grades")]
)
def test_a_folder_without_grades_is_refused(course, tmp_path, folder, reason):
    with pytest.raises(UnusableInput, match=reason):
        exported(course, tmp_path / folder, "junit")


@pytest.mark.parametrize("to", ["canvas", "moodle", "junit", "actions"])
@pytest.mark.parametrize("content", ["nothing", "submissions and a roster"])
def test_a_folder_in_which_nothing_was_graded_is_refused_with_advice(course, tmp_path, to, content):
    out = tmp_path / "week 3"
    out.mkdir()
    if content != "nothing":
        write_submission(out / "ada")
        (out / "roster.csv").write_text("id,name,email\nada,Ada,\n")

    with pytest.raises(UnusableInput, match=f"has no grades.*gradsync grade '{out}' --out grades"):
        exported(course, out, to)

    assert not (out / "exports").exists()


def test_the_command_lists_the_files_it_wrote_and_the_people_it_left_out(course, grades):
    done = gradsync(course, "export", grades, "--to", "canvas")

    assert done.stdout.splitlines() == [
        str(grades / "exports/canvas.csv"),
        "1 person on the roster handed in nothing, so nothing is written: Nobody (7)",
    ]


def test_a_submission_on_which_the_grader_failed_is_listed_as_without_a_score(
    course, grades, tmp_path
):
    out = shutil.copytree(grades, tmp_path / "grades")
    GradeStore(out).save(Report("eve", 0, 0.0, (), problem="out of memory"))

    found = exported(course, out, "moodle")

    assert (found.missing, found.without_score) == (("Nobody (7)",), ("eve",))


def test_the_export_warns_of_more_points_than_an_exercise_has(course, grades, tmp_path):
    out = shutil.copytree(grades, tmp_path / "grades")
    rows = (
        "submission,exercise,points,reason,by",
        '"=1+1, Ödön",double,199,x,Kim',
    )
    (out / "overrides.csv").write_text("\n".join(rows))

    done = gradsync(course, "export", out, "--to", "canvas")

    assert "=1+1, Ödön gets 199 points in phase1/double, whose maximum is 100." in done.stderr


def test_an_autograder_without_solutions_says_that_follow_on_errors_cost_points(course, tmp_path):
    (course.root / "course.toml").write_text('[course]\nfollow_on = "full"\n')
    (tmp_path / "empty").mkdir()

    [warning] = exported(course, tmp_path / "empty", "gradescope", tmp_path / "a.zip").warnings
    assert "has no effect there" in warning
