"""Reviews of the course's known submissions."""

from pathlib import Path

import pytest

from gradsync.course.catalogue import find_course
from gradsync.course.known_submissions import right_submissions, wrong_submissions
from gradsync.review import review_text
from gradsync.review.catalogue import RULES

COURSE = find_course(Path(__file__))
RIGHT = [right for phase in COURSE.phases for right in right_submissions(COURSE, phase)]
# The rules that find a mistake, by the grader's code for the mistake.
CODES = {
    "no-rank-waits": {"DDP018"},
    "deadlock-rank-missing": {"DDP015", "DDP016", "DDP017"},
    "mean-of-means": {"DDP031"},
    "every-rank-prints": {"DDP014"},
}


def codes_of(submission, file):
    path, text = str(COURSE.root / file), submission.files[file].decode()
    return {f.code for f in review_text(text, path, RULES, unsure=True).findings}


@pytest.mark.slow
@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_nothing_is_found_in_a_correct_answer(right):
    submission = right.submission(COURSE)

    assert {file: codes_of(submission, file) for file in right.additions} == {
        file: set() for file in right.additions
    }


@pytest.mark.slow
def test_known_mistakes_are_found_by_the_expected_rules():
    found = {code: set() for code in CODES}
    for phase in COURSE.phases:
        for wrong in wrong_submissions(COURSE, phase):
            if wrong.code in CODES:
                found[wrong.code] |= codes_of(wrong.submission(COURSE), wrong.file)

    assert found == CODES
