"""The visible tests name common mistakes, and pass for correct answers."""

import ast
from pathlib import Path

import pytest

from gradsync.bank import right_submissions, wrong_submissions
from gradsync.course import find_course
from gradsync.grading import grade

COURSE = find_course(Path(__file__).parent)
PHASES = COURSE.graded_phases("visible")
WRONG = {one.name: one for phase in PHASES for one in wrong_submissions(COURSE, phase)}
RIGHT = {
    f"{one.phase}/{one.name}": one for phase in PHASES for one in right_submissions(COURSE, phase)
}
SEEN = [
    "takes-torch's-sampler",
    "trains-with-the-ready-made-class",
    "calls-the-ready-made-all-reduce",
    "goes-through-a-set-of-gradients",
    "rounds-the-share-down",
    "says-a-length-that-is-rounded-down",
    "divides-the-batch-size",
    "divides-the-batch-size-by-the-ranks",
]


def check(submission, exercise):
    phase = exercise.partition("/")[0]
    return grade(
        submission, COURSE, phases=[phase], seed=3, audience="visible", exercise=exercise
    ).verdicts


@pytest.mark.parametrize("name", SEEN)
def test_a_common_mistake_is_named(name):
    wrong = WRONG[name]

    diagnoses = [verdict.diagnosis for verdict in check(wrong.submission(COURSE), wrong.exercise)]
    assert next(diagnosis.code for diagnosis in diagnoses if diagnosis) == wrong.code


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_answer_passes(name):
    right = RIGHT[name]
    trees = [ast.parse(text) for text in right.additions.values()]
    names = {node.name for tree in trees for node in tree.body if hasattr(node, "name")}
    every = COURSE.exercises(right.phase)
    written = [exercise for exercise in every if exercise.name in names] or every  # or a helper

    verdicts = [v for e in written for v in check(right.submission(COURSE), e.id)]

    assert [(v.id, v.message) for v in verdicts if v.status != "passed"] == []
