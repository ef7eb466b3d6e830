"""Templates made from solutions whose markers are not right."""

import pytest
from small_course import write_course

from gradsync.course.catalogue import CourseError
from gradsync.course.templates import templates


@pytest.mark.parametrize(
    ("solution", "said"),
    [
        ("x = 1\n### END SOLUTION\n", "Line 2 has '### END SOLUTION' where"),
        ("### BEGIN SOLUTION\nx = 1\n", "Line 1 has '### BEGIN SOLUTION', which is never closed"),
    ],
)
def test_an_unpaired_marker_is_named_with_its_file(tmp_path, solution, said):
    course = write_course(tmp_path)
    file = tmp_path / "solutions" / "phase1" / "template_trainer.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(solution)

    with pytest.raises(CourseError, match=f"{file}: {said}"):
        list(templates(course))
