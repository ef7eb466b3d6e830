"""`gradsync scale --mine` measures the averagers of this course beside DDP."""

import pytest
from rich.console import Console

from gradsync.course.catalogue import find_course
from gradsync.scale.mine import TURNS, compare
from gradsync.scale.tables import averagers
from gradsync.submission import read_submission

COURSE = find_course()


@pytest.mark.slow
def test_the_solutions_are_measured_beside_ddp():
    submission = read_submission(COURSE.root / "solutions", COURSE)

    found = compare(submission, COURSE, lambda _: None)

    assert found.failures == {}
    mine = [one.figures for one in found.mine]
    assert [one.name for one in mine] == ["average_gradients", "BucketedGradientAverager"]
    gradients = found.reference.bytes
    assert gradients == 4 * 932_362  # the model's parameters
    assert all(one.bytes >= gradients for one in mine)
    assert {len(one.ratios) for one in found.mine} == {TURNS}
    blocking, overlapping = mine
    assert blocking.hidden < overlapping.hidden


def test_an_averager_that_is_not_written_yet_is_named():
    submission = read_submission(COURSE.root, COURSE)  # the templates

    found = compare(submission, COURSE, lambda _: None)

    assert found.mine == ()
    assert set(found.failures) == {"average_gradients", "BucketedGradientAverager"}
    console = Console(record=True, width=100)
    for part in averagers(found):
        console.print(part)
    assert "average_gradients was not measured. phase1/average_gradients is not written yet." in (
        console.export_text()
    )
