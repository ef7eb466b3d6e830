"""The course that a command uses: of the working folder, of a checkout, or of the wheel."""

import pytest
from small_course import write_course

from gradsync.course import catalogue
from gradsync.course.catalogue import CourseError, find_course


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An installed wheel, which carries a course, and a working folder without one."""
    write_course(tmp_path / "site" / "gradsync_course")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(catalogue, "PACKAGE", tmp_path / "site" / "gradsync")
    monkeypatch.setattr(catalogue, "CARRIED", tmp_path / "site" / "gradsync_course")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_grading_needs_no_course_but_the_wheels(wheel):
    assert find_course(carried=True).root == wheel / "site" / "gradsync_course"


def test_a_learner_works_on_a_copy(wheel):
    with pytest.raises(CourseError, match="gradsync start my-course"):
        find_course()


def test_a_course_of_the_working_folder_comes_first(wheel):
    write_course(wheel / "elsewhere")

    assert find_course(carried=True).root == wheel / "elsewhere"
