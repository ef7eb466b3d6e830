"""25 submissions as learners hand them in, in four systems' forms: a fair grade, or a notice."""

import subprocess
import sys
from pathlib import Path

import class_downloads
import pytest
from class_downloads import LEARNERS, ONE, RIGHT, WRONG, two_phases
from parsed_html import ParsedHtml
from report_samples import report, verdict

from gradsync.grading import tasks
from gradsync.grading.classes.entries import entries_at
from gradsync.grading.classes.grade_class import grade_class
from gradsync.grading.classes.results import read_class
from gradsync.grading.store import GradeStore
from gradsync.records import Diagnosis

FORMS = ("canvas", "moodle", "gradescope", "clones")
PANDAS = Diagnosis(
    "exception", (), "template_trainer.py:1 raises ModuleNotFoundError: No module named 'pandas'. "
    "If", whole_file=True,
)  # fmt: skip


def results_of(course, out):
    """Return the result of each learner, in the order of LEARNERS."""
    found = {}
    for result in read_class(GradeStore(out), course).results:
        number = result.facts.key and int(result.facts.key) - 9100
        if not result.facts.key:
            number = int("".join(filter(str.isdigit, result.submission.removeprefix("week3-"))))
        found[number] = result
    assert len(found) == len(LEARNERS)
    return [found[number] for number in range(len(LEARNERS))]


def attention(out):
    text = ParsedHtml((out / "class.html").read_text()).text
    return text[text.index("Needs attention") : text.index("Exercises by success")]


def assert_fair(course, out, form):
    told = attention(out)
    for learner, result in zip(LEARNERS, results_of(course, out), strict=True):
        points = tuple(result.phases.get(phase, 0.0) for phase in ("phase1", "phase2"))
        assert points == pytest.approx(learner.points, abs=0.1), (learner.name, result.notes)
        assert result.max_score == 200.0
        if learner.attention:
            assert learner.attention in told, (learner.name, result.notes)
        assert bool(learner.attention) == _is_noted(result), (learner.name, result.notes)
    if form == "canvas":
        assert "tela : Canvas marks it as late" in told


def _is_noted(result):
    kinds = ("unreadable: ", "refused: ", "assumed: ", "missing: ")
    unimported = any(t.diagnosis and t.diagnosis.whole_file for t in result.tests)
    return unimported or any(note.startswith(kinds) for note in result.notes)


def fake_grade(submission, _course, *, phases, seed, **_options):
    """Give all points for the right source, as the suite of the course does."""
    tests = []
    for phase in phases:
        source = submission.files.get(ONE.replace("phase1", phase), b"").decode("utf-8-sig")
        right = source.replace("\r\n", "\n") == RIGHT
        more = {"diagnosis": PANDAS} if "pandas" in source else {}
        status = "passed" if right else "failed" if source else "missing"
        tests.append(
            verdict(
                "double", status, exercise=f"{phase}/double", id=f"{phase}/t::test",
                points=100.0 * right, max_points=100.0, **more,
            )
        )  # fmt: skip
    return report(*tests, submission=submission.name, seed=seed, notes=submission.notes)


@pytest.mark.parametrize("form", FORMS)
def test_each_submission_gets_a_fair_grade_or_a_notice(tmp_path, monkeypatch, form):
    if form == "clones" and not class_downloads.has_git():
        pytest.skip("git is not installed")
    course, out = two_phases(tmp_path / "course"), tmp_path / "out"
    getattr(class_downloads, form)(tmp_path / "download")
    monkeypatch.setattr(tasks, "grade", fake_grade)

    entries = entries_at([tmp_path / "download"], course, out, "gradsync grade")
    list(grade_class(entries, course, ["phase1", "phase2"], out))

    assert len(entries) == len(LEARNERS) == 25
    assert_fair(course, out, form)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["canvas", "moodle"])
def test_the_command_grades_the_download_itself(tmp_path, form):
    course, out = two_phases(tmp_path / "course"), tmp_path / "out"
    getattr(class_downloads, form)(tmp_path / "download")
    pack = [sys.executable, "-m", "zipfile", "-c", tmp_path / "download.zip", "download/"]
    subprocess.run(pack, cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "gradsync", "grade", tmp_path / "download.zip", "--out", out]
    command += ["--unsafe-no-sandbox"]
    path = {"PYTHONPATH": str(Path(__file__).parents[4])}
    done = subprocess.run(
        command, cwd=course.root, env=path, check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert_fair(course, out, form)


def test_the_class_has_right_and_wrong_answers():
    assert WRONG != RIGHT
    assert len({learner.name for learner in LEARNERS}) == 24  # two people share a name
