"""What a phase's list of exercises may have above them: given files, and defaults of training."""

import pytest
from small_course import EXERCISES

from gradsync.cli.launch.train import train_command
from gradsync.course.catalogue import Course, CourseError
from gradsync.grading.suite.learner_files import LearnerFiles

SETTINGS = 'given = ["words.py"]\n[training]\nepochs = 2\ncheckpoint = "parts"\n'


@pytest.fixture
def course(tmp_path):
    (tmp_path / "phase1").mkdir()
    (tmp_path / "phase1" / "exercises.toml").write_text(SETTINGS + EXERCISES)
    return Course(tmp_path)


def probe(trainer):
    return trainer


def test_a_phase_has_given_files_and_defaults(course):
    assert course.given("phase1") == ("words.py",)
    assert course.training("phase1") == {"epochs": 2, "checkpoint": "parts"}
    assert course.exercises("phase1")


def test_a_phase_without_settings_has_none(course):
    (course.root / "phase1" / "exercises.toml").write_text(EXERCISES)

    assert course.given("phase1") == ()
    assert course.training("phase1") == {}


def test_an_unreadable_list_is_named(course):
    (course.root / "phase1" / "exercises.toml").write_text("given = [")

    with pytest.raises(CourseError, match=r"phase1/exercises\.toml"):
        course.given("phase1")


def test_answers_can_import_a_given_file_after_their_own(course):
    submission = course.root / "ada"
    (submission / "phase1").mkdir(parents=True)
    (submission / "phase1" / "template_trainer.py").touch()

    settings = LearnerFiles(submission, course, "phase1").settings(probe)

    assert settings["path"] == (str(submission / "phase1"), str(course.root / "phase1"))
    assert settings["readable"] == (course.root / "phase1",)


def test_the_command_has_the_defaults_of_the_phase(course, monkeypatch):
    seen = []
    (course.root / "phase1" / "template_trainer.py").touch()
    monkeypatch.chdir(course.root)
    monkeypatch.setattr(
        "gradsync.cli.launch.train._run", lambda settings, *_: seen.append(settings)
    )

    train_command()
    train_command(epochs=7)

    assert [one.epochs for one in seen] == [2, 7]
    assert [one.checkpoint.name for one in seen] == ["parts", "parts"]
    assert seen[0].batch_size == 50
